"""A private server with S3's interface: SeaweedFS, all of its parts in one process."""

import json
import re
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

from tests.support.aws import ACCESS_KEY, REGION, SECRET_KEY
from tests.support.database import Address
from tests.support.dates import ClockedProxy
from tests.support.ports import LOOPBACK, free_port
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerProcess

_PARTS = ("master", "master grpc", "volume", "volume grpc", "filer", "filer grpc", "s3 grpc")
_IDENTITY = {
    "name": "tests",
    "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
    "actions": ["Admin", "Read", "List", "Write"],
}
_ANONYMOUS = {"name": "anonymous", "actions": ["Read", "List", "Write"]}
"""The user of requests that a front end has changed, so that they have no signature."""
BUCKET = "locks"


def object_url(address: Address, prefix: str = "") -> str:
    host, port = address
    return f"s3://{BUCKET}/{prefix}?region={REGION}&endpoint=http://{host}:{port}"


class S3Server(ServerProcess):
    """SeaweedFS with one bucket. It accepts signatures with the keys in ``aws.py``."""

    product = "s3"
    programs = ("weed",)
    releases: ClassVar[Mapping[str, Release]] = {"4.45": Fetched("s3")}
    bucket = BUCKET
    stop_signal = signal.SIGKILL  # an orderly end takes ten seconds

    def __init__(self) -> None:
        super().__init__()
        self._ports = {part: free_port() for part in _PARTS}
        self._front: ClockedProxy | None = None
        self._clients: dict[tuple[object, ...], Any] = {}

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)
        (self.directory / "s3.json").write_text(json.dumps({"identities": [_IDENTITY, _ANONYMOUS]}))

    def start(self) -> None:
        super().start()
        clock = self.environment.get("SHEDLOCK_CLOCK")
        if clock and self._front is None:
            self._front = ClockedProxy(super().address, Path(clock))

    def close(self) -> None:
        if self._front is not None:
            self._front.close()
        for client in self._clients.values():
            client.close()
        super().close()
        ports = {str(port) for port in (*self._ports.values(), self._port)}
        for path in Path("/tmp").glob("seaweedfs-*.sock"):  # SeaweedFS has no option for this folder
            if path.stem.rpartition("-")[2] in ports:
                path.unlink(missing_ok=True)

    @property
    def address(self) -> Address:
        """The address of the server, or of the front end that shows another time if the environment names a clock."""
        return super().address if self._front is None else self._front.address

    def command(self, port: int) -> list[str]:
        ports = self._ports
        return [
            *self._programs["weed"], "server", f"-dir={self.data}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}",
            f"-master.port={ports['master']}", f"-master.port.grpc={ports['master grpc']}",
            "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=8",
            "-master.electionTimeout=1s", "-master.heartbeatInterval=100ms",  # otherwise a second start takes 20 s
            f"-volume.port={ports['volume']}", f"-volume.port.grpc={ports['volume grpc']}",
            f"-filer.port={ports['filer']}", f"-filer.port.grpc={ports['filer grpc']}",
            "-s3", f"-s3.port={port}", f"-s3.port.grpc={ports['s3 grpc']}", f"-s3.config={self.directory / 's3.json'}",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
        ]  # fmt: skip

    def answers(self) -> bool:
        """Return whether it writes objects. The first reply creates the bucket."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            if self.pid is not None:
                with self.client(attempts=1) as client:
                    if self.bucket not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
                        client.create_bucket(Bucket=self.bucket)
                    client.put_object(Bucket=self.bucket, Key="ready", Body=b"yes")
                return True
        except (BotoCoreError, ClientError):
            pass
        return False

    def client(self, *, attempts: int = 3) -> Any:
        """Return a boto3 client for a ``with`` block. It is cached: a new client takes a tenth of a second."""
        kept = (*super().address, attempts)
        if kept in self._clients:
            return nullcontext(self._clients[kept])
        import boto3  # import late: processes that need another store import this module too
        from botocore.config import Config

        config = Config(
            retries={"total_max_attempts": attempts}, request_checksum_calculation="when_required", connect_timeout=5
        )
        host, port = super().address
        made = boto3.client("s3", region_name=REGION, endpoint_url=f"http://{host}:{port}", config=config)
        self._clients[kept] = made
        return nullcontext(made)

    def keys(self, prefix: str) -> list[str]:
        with self.client() as client:
            return [
                found["Key"] for found in client.list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", ())
            ]

    def delete_all(self, prefix: str) -> None:
        with self.client() as client:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                for found in page.get("Contents", ()):
                    client.delete_object(Bucket=self.bucket, Key=found["Key"])

    def version(self) -> tuple[str, str]:
        with self.client() as client:
            headers = client.list_buckets()["ResponseMetadata"]["HTTPHeaders"]
        found = re.search(r"[\d.]+$", headers["server"])
        return "SeaweedFS", found.group() if found else headers["server"]

    def url(self, *, via: Address | None = None, prefix: str = "") -> str:
        return object_url(via or self.address, prefix)
