"""Without credentials, the SDK's ``DefaultAzureCredential`` finds them: here, a managed identity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.availability import private_server
from tests.support.azblob import ACCOUNT, CONTAINER, AzuriteTlsServer
from tests.support.ports import LOOPBACK

CLIENT = """
import asyncio, sys
from shedlock_py import LockRequest, async_provider_from_url, provider_from_url

async def main():
    provider = async_provider_from_url(sys.argv[1])
    assert await provider.release(await provider.acquire(LockRequest("job", "1m")))
    await provider.close()

if sys.argv[2] == "async":
    asyncio.run(main())
else:
    provider = provider_from_url(sys.argv[1])
    assert provider.release(provider.acquire(LockRequest("job", "1m")))
    provider.close()
print("locked")
"""


@contextmanager
def managed_identity() -> Iterator[dict[str, str]]:
    """Run the endpoint that gives the tokens of an App Service. Yield the variables that name it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            now = int(time.time())
            claims = {"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/", "nbf": now - 60}
            claims |= {"iat": now - 60, "exp": now + 3600}
            parts = (json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims))
            token = ".".join([*(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), "c2ln"])
            reply = {"access_token": token, "expires_on": str(now + 3600), "resource": "x", "token_type": "Bearer"}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield {"IDENTITY_ENDPOINT": f"http://{LOOPBACK}:{server.server_port}/token", "IDENTITY_HEADER": "secret"}
        server.shutdown()
        thread.join()


@pytest.mark.slow("starts a server with TLS and two processes")
def test_a_managed_identity_opens_the_store() -> None:
    with private_server("azblob", AzuriteTlsServer) as server, managed_identity() as identity:
        trust = {"REQUESTS_CA_BUNDLE": server.certificate, "SSL_CERT_FILE": server.certificate}
        url = f"azblob://{ACCOUNT}/{CONTAINER}/x?timeout=30s&endpoint={server.endpoint(server.address)}"
        for kind in ("sync", "async"):
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", CLIENT, url, kind],
                env=os.environ | trust | identity,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.stdout, done.stderr) == ("locked\n", "")
