"""Which authorities the tests and the processes that they start trust by default."""

import os
import re
from pathlib import Path

UNUSED_CA = Path(__file__).with_name("authority.pem")
"""A CA certificate whose private key was discarded."""


def trust_none() -> None:
    """Load one certificate in the place of the system's 140.

    PyMySQL loads them for each connection, also to a server without TLS: 35 ms of processor time, which was a tenth of
    all that `make test` needed. aiohttp does so twice when it is imported. Private servers have certificates of their
    own; a server that ``SHEDLOCK_TEST_..._URL`` names may need the system's.
    """
    if any(re.fullmatch("SHEDLOCK_TEST_.*_URL", name) for name in os.environ):
        return
    os.environ["SSL_CERT_FILE"] = str(UNUSED_CA)
    os.environ["SSL_CERT_DIR"] = os.devnull
