"""Private servers of DynamoDB Local, Amazon's engine on one machine."""

import json
import os
import urllib.request
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import uuid4

from tests.support.database import Address
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerProcess

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "s3cret-key"}
"""DynamoDB Local checks no signature, but boto3 sends nothing without keys."""
REGION = "eu-west-1"
_HEADERS = {
    "Content-Type": "application/x-amz-json-1.0",
    "Authorization": f"AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/dynamodb/aws4_request, "
    "SignedHeaders=host, Signature=0",
}


class DynamoDBServer(ServerProcess):
    """All clients see the same tables, in a file. The first server sets boto3's variables if they are not set."""

    product = "dynamodb"
    programs = ("DynamoDBLocal",)
    tools = ("java",)
    releases: ClassVar[Mapping[str, Release]] = {"1.25": Fetched("dynamodb")}

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)
        for name, value in KEYS.items():
            os.environ.setdefault(name, value)

    def command(self, port: int) -> list[str]:
        return [
            *self._programs["DynamoDBLocal"],
            "-port", str(port), "-dbPath", str(self.data), "-sharedDb", "-disableTelemetry",
        ]  # fmt: skip

    def answers(self) -> bool:
        if self.pid is None:
            return False
        try:
            return "TableNames" in self.ask("ListTables")
        except (OSError, ValueError):
            return False

    def ask(self, operation: str, **body: Any) -> dict[str, Any]:
        """Return the reply. :raises OSError: the server sends no reply, or an error."""
        host, port = self.address
        headers = _HEADERS | {"X-Amz-Target": f"DynamoDB_20120810.{operation}"}
        request = urllib.request.Request(f"http://{host}:{port}/", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=5) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer

    def version(self) -> tuple[str, str]:
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return "DynamoDB Local", next(words[1] for words in lines if words[:1] == ["Version:"])

    def create_table(self, name: str | None = None, *, key: str = "_id") -> str:
        """Create a table as ``create_schema()`` does, without the TTL. Return its name."""
        name = name or f"locks_{uuid4().hex[:8]}"
        self.ask(
            "CreateTable",
            TableName=name,
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        return name

    def item(self, table: str, name: str) -> dict[str, Any] | None:
        """Return the item of a lock, unchanged."""
        return self.ask("GetItem", TableName=table, Key={"_id": {"S": name}}, ConsistentRead=True).get("Item")

    def items(self, table: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.ask("Scan", TableName=table, ConsistentRead=True)["Items"]
        return items

    def put(self, table: str, **item: str | int) -> None:
        typed = {name: {"S": value} if isinstance(value, str) else {"N": str(value)} for name, value in item.items()}
        self.ask("PutItem", TableName=table, Item=typed)

    def delete(self, table: str, name: str) -> None:
        self.ask("DeleteItem", TableName=table, Key={"_id": {"S": name}})

    def url(self, table: str, *, via: Address | None = None) -> str:
        return table_url(via or self.address, table)


def table_url(address: Address, table: str) -> str:
    """Return a provider's URL for a table at a server."""
    host, port = address
    return f"dynamodb://{table}?region={REGION}&endpoint={quote(f'http://{host}:{port}', safe='')}"
