"""The certificate authorities that the tests and their processes trust by default."""

import os
import re
from pathlib import Path

UNUSED_CA = Path(__file__).with_name("authority.pem")
"""A CA certificate. Its private key was discarded."""


def trust_none() -> None:
    """Load one certificate instead of the system's 140.

    PyMySQL loads them for each connection, even to a server without TLS: 35 ms of processor time, a tenth of all that
    `make test` used. aiohttp loads them twice when it is imported. Private servers have their own certificates; a
    server that ``SHEDLOCK_TEST_..._URL`` names may need the system's.
    """
    if any(re.fullmatch("SHEDLOCK_TEST_.*_URL", name) for name in os.environ):
        return
    os.environ["SSL_CERT_FILE"] = str(UNUSED_CA)
    os.environ["SSL_CERT_DIR"] = os.devnull
