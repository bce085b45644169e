"""A private server with the interface of Azure Blob Storage: Microsoft's Azurite."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from tests.support.database import Address
from tests.support.dates import ClockedProxy
from tests.support.ports import LOOPBACK
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerProcess

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's account has this key everywhere; it is no secret."""
CONTAINER = "locks"

for name in ("CONNECTION_STRING", "KEY", "SAS_TOKEN"):  # the user's own
    os.environ.pop(f"AZURE_STORAGE_{name}", None)


def blob_url(address: Address, prefix: str = "", credentials: str = f"account_key={quote(KEY, safe='')}") -> str:
    host, port = address
    endpoint = quote(f"http://{host}:{port}/{ACCOUNT}", safe="")
    return f"azblob://{ACCOUNT}/{CONTAINER}/{prefix}?endpoint={endpoint}&{credentials}"


class AzuriteServer(ServerProcess):
    """Azurite with one container. It writes its data to disk every five seconds, and when it ends in order."""

    product = "azblob"
    programs = ("azurite",)
    tools: ClassVar[tuple[str, ...]] = ("node",)
    releases: ClassVar[Mapping[str, Release]] = {"3.35": Fetched("azblob")}
    container = CONTAINER
    scheme = "http"

    def __init__(self) -> None:
        super().__init__()
        self.client_options: dict[str, Any] = {}
        self._front: ClockedProxy | None = None

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)

    def start(self) -> None:
        super().start()
        clock = self.environment.get("SHEDLOCK_CLOCK")
        if clock and self._front is None:
            self._front = ClockedProxy(super().address, Path(clock))

    def close(self) -> None:
        if self._front is not None:
            self._front.close()
        super().close()

    @property
    def address(self) -> Address:
        """The address of the server, or of the front end that shows another time if the environment names a clock."""
        return super().address if self._front is None else self._front.address

    def command(self, port: int) -> list[str]:
        return [
            *self._programs["azurite"], f"--blobHost={LOOPBACK}", f"--blobPort={port}", f"--location={self.data}",
            "--silent", "--disableTelemetry", "--skipApiVersionCheck",
        ]  # fmt: skip

    def answers(self) -> bool:
        """Return whether it has the container. The first reply creates it."""
        from azure.core.exceptions import AzureError, ResourceExistsError

        try:
            if self.pid is not None:
                with self.client() as client:
                    client.create_container()
                return True
        except ResourceExistsError:
            return True
        except AzureError:
            pass
        return False

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Yield a ``ContainerClient``."""
        from azure.storage.blob import ContainerClient  # import late: processes that need another store import this too

        account = {"account_name": ACCOUNT, "account_key": KEY}
        options = {"retry_total": 0, **self.client_options}
        with ContainerClient(self.endpoint(super().address), self.container, account, **options) as client:
            yield client

    def endpoint(self, address: Address) -> str:
        host, port = address
        return f"{self.scheme}://{host}:{port}/{ACCOUNT}"

    def keys(self, prefix: str) -> list[str]:
        with self.client() as client:
            return list(client.list_blob_names(name_starts_with=prefix))

    def delete_all(self, prefix: str) -> None:
        with self.client() as client:
            for name in client.list_blob_names(name_starts_with=prefix):
                client.delete_blob(name)

    def version(self) -> tuple[str, str]:
        headers: list[Any] = []
        with self.client() as client:
            client.get_container_properties(raw_response_hook=lambda reply: headers.append(reply.http_response.headers))
        product, _, version = headers[-1]["Server"].partition("/")
        return product.partition("-")[0], version

    def url(self, *, via: Address | None = None, prefix: str = "") -> str:
        return blob_url(via or self.address, prefix)


class AzuriteTlsServer(AzuriteServer):
    """Speaks TLS only, with :attr:`certificate`, and also accepts tokens of identities, as Azure does.

    It checks the audience and the end of a token, but not its signature.
    """

    tools = ("node", "openssl")
    scheme = "https"

    @property
    def certificate(self) -> str:
        return f"{self.directory}/certificate.pem"

    def create_data(self) -> None:
        super().create_data()
        self._run(
            *self._programs["openssl"], "req", "-x509", "-nodes", "-days", "2", "-newkey", "rsa:2048",
            "-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{LOOPBACK}",
            "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
            "-keyout", f"{self.directory}/key.pem", "-out", self.certificate,
        )  # fmt: skip
        self.client_options["connection_verify"] = self.certificate

    def command(self, port: int) -> list[str]:
        certificates = [f"--cert={self.certificate}", f"--key={self.directory}/key.pem"]
        return [*super().command(port), "--oauth=basic", *certificates]
