"""Which authorities the tests and the processes that they start trust by default."""

import os
from pathlib import Path

NOBODYS = Path(__file__).with_name("authority.pem")
"""An authority whose key nobody has."""


def trust_none() -> None:
    """Load one certificate in the place of the system's 140.

    PyMySQL loads them for each connection, also to a server without TLS: 35 ms of processor time, which was a tenth of
    all that `make test` needed. aiohttp does so twice when it is imported. No test talks to a server of the Internet.
    """
    os.environ["SSL_CERT_FILE"] = str(NOBODYS)
    os.environ["SSL_CERT_DIR"] = os.devnull
