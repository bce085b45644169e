"""Creates and checks the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shedlock_py.providers.aws import AwsReply, AwsRequest, Sleep
from shedlock_py.providers.dynamodb.wire import EXPIRES_AT, KEY
from shedlock_py.providers.kit import Check, refused, unreachable
from shedlock_py.runtime.program import Program

_POLL_SECONDS = 0.25
_MISSING, _EXISTS, _DENIED = "ResourceNotFoundException", "ResourceInUseException", "AccessDeniedException"
_KEY_SCHEMA = [{"AttributeName": KEY, "KeyType": "HASH"}]


def created(
    table: str, timeout: float | None, clock: Callable[[], float]
) -> Program[AwsRequest | Sleep, AwsReply | Any, None]:
    """Create ``table`` if it is missing, wait until it can be used, and switch its TTL on.

    Several processes may do this at once: one creates the table, and all wait. For an existing table, the right to
    create is not needed.
    """
    ends_at = float("inf") if timeout is None else clock() + timeout - 2 * _POLL_SECONDS
    found = yield from _described(table)
    if found is None:
        yield AwsRequest(
            "create_table",
            {
                "TableName": table,
                "KeySchema": _KEY_SCHEMA,
                "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
                "BillingMode": "PAY_PER_REQUEST",
            },
            expected=(_EXISTS,),
        )
    while found is None or found["TableStatus"] == "CREATING":
        if clock() > ends_at:
            what = f"the table {table!r} is being created, and cannot be used yet"
            raise unreachable("create_schema", None, what, hint="call create_schema() again in a few seconds")
        if found is not None:
            yield Sleep(_POLL_SECONDS)
        found = yield from _described(table)
        if found is None:
            yield Sleep(_POLL_SECONDS)
    _check_key(table, found)
    yield from _switch_ttl_on(table)


def replication(table: str) -> Program[AwsRequest, AwsReply, Check]:
    """Check whether ``table`` is a global table: two regions could then grant the same lock."""
    reply = yield AwsRequest("describe_table", {"TableName": table})
    regions = sorted(replica["RegionName"] for replica in reply.value["Table"].get("Replicas", ()))
    if not regions:
        return Check("replication", "ok", "in one region only")
    message = f"a global table, with replicas in {', '.join(regions)}: two regions can each grant a lock"
    return Check("replication", "warning", message, "name one region in the URL of all nodes")


def _described(table: str) -> Program[AwsRequest, AwsReply, Any]:
    reply = yield AwsRequest("describe_table", {"TableName": table}, expected=(_MISSING,))
    return reply.value.get("Table")


def _check_key(table: str, found: dict[str, Any]) -> None:
    types = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    if found["KeySchema"] != _KEY_SCHEMA or types.get(KEY) != "S":
        what = f"the table {table!r} has another key than {KEY!r}, a string"
        raise refused("create_schema", None, what, hint="name another table in the URL; create_schema() creates it")


def _switch_ttl_on(table: str) -> Program[AwsRequest, AwsReply, None]:
    """Switch the TTL on, unless it is on for any attribute, or its state may not be read."""
    reply = yield AwsRequest("describe_time_to_live", {"TableName": table}, expected=(_DENIED,))
    if reply.code or reply.value["TimeToLiveDescription"]["TimeToLiveStatus"] != "DISABLED":
        return
    yield AwsRequest(
        "update_time_to_live",
        {"TableName": table, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": EXPIRES_AT}},
        # Another process has switched it on, or is doing so.
        expected=("ValidationException", _EXISTS, "LimitExceededException"),
    )
