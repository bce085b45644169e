"""Commands as requests to DynamoDB, and items as lock records.

An item has the attributes of ShedLock for Java, so both libraries can use one table: ``_id``, ``lockUntil``,
``lockedAt`` and ``lockedBy``, with times as text with milliseconds. It also has these:

``fencingToken``    a number
``leaseVersion``    a number: 0 at the acquisition, plus 1 for each write of its holder
``lastFireTime``    text with microseconds
``releasedBy``      ``lockedBy`` of the released acquisition: while the two are equal, the lock is free
``endedBy``         the same after a release with a minimum hold, which keeps the lock for a while
``expiresAt``       seconds since 1970, for DynamoDB's TTL
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from shedlock_py.model.record import LockRecord
from shedlock_py.providers import kit
from shedlock_py.providers.aws import AwsReply, AwsRequest, Sleep
from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.cas.cas_programs import UNREAD
from shedlock_py.providers.cas.listing import readable
from shedlock_py.runtime.program import Program

CONDITION_FAILED = "ConditionalCheckFailedException"
KEY = "_id"
CLAIM_MARK = "#"
"""Stands before the claim id. A holder without it comes from ShedLock for Java.

That holder is the same in its next acquisition, so its ``releasedBy`` says nothing. shedlock_py 0.1.0 wrote
``releasedBy`` when it freed such a lock by force.
"""
EXPIRES_AT = "expiresAt"
KEPT_FOR = timedelta(days=30)
"""How long DynamoDB's TTL keeps an unused lock."""
_MILLISECOND = timedelta(milliseconds=1)
_CONTENT_TYPE = "application/x-amz-json"


@dataclass(frozen=True, slots=True)
class Read(kit.GrantsNothing):
    """Read the item of ``name`` into the reply's ``entry``. It is None if the item does not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """Change or create the item of ``name`` if ``condition`` holds. If not, the reply's ``entry`` is the item.

    :ivar update: an update expression.
    :ivar values: the values in the update and in the condition, by name without the colon.
    :ivar can_grant: True if it can grant the lock.
    """

    name: str
    update: str
    condition: str
    values: Mapping[str, str | int] = field(default_factory=dict)
    can_grant: bool = False


@dataclass(frozen=True, slots=True)
class Delete(kit.GrantsNothing):
    """Delete the item of ``entry`` if it is unchanged."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class List(kit.GrantsNothing):
    """List the items with names that start with ``prefix``. They are the reply's ``entries``."""

    prefix: str


Command = Read | Change | Delete | List


class Reply(NamedTuple):
    """The result of a command, and the server's time."""

    time: ServerTime
    is_done: bool = True
    entry: Entry | None = None
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """An item.

    :ivar is_free: True if it was released, and is free whatever the clocks say.
    :ivar lock_until: the text in the item, like ``locked_at``.
    :ivar version: its ``leaseVersion``. Items of ShedLock for Java and of shedlock_py 0.1.0 lack it (None).
    """

    record: LockRecord
    is_free: bool
    lock_until: str
    locked_at: str
    version: int | None


class Table:
    """Makes the requests to one table."""

    def __init__(self, name: str) -> None:
        self.name = name

    def exchange(self, command: Command | AwsRequest | Sleep) -> Program[AwsRequest | Sleep, Any, Any]:
        """Make the requests for ``command``. Requests that create the table are passed on."""
        match command:
            case Read():
                reply = yield from _reply_to(self._request("get_item", Key=_key(command.name), ConsistentRead=True))
                return Reply(reply.time, entry=_entry(reply.value.get("Item")))
            case List():
                return (yield from self._scan(command))
            case Change():
                return _done((yield from _reply_to(self._update(command))))
            case Delete():
                record = command.entry.record
                values = {"lockUntil": command.entry.lock_until, "lockedBy": record.locked_by}
                condition = "lockUntil = :lockUntil AND lockedBy = :lockedBy"
                return _done((yield from _reply_to(self._write("delete_item", record.name, condition, values))))
            case _:
                return (yield command)

    def _scan(self, command: List) -> Program[AwsRequest, AwsReply, Reply]:
        arguments: dict[str, Any] = {"ConsistentRead": True}
        if command.prefix:
            arguments["FilterExpression"] = "begins_with(#key, :prefix)"
            arguments["ExpressionAttributeNames"] = {"#key": KEY}
            arguments["ExpressionAttributeValues"] = _typed({"prefix": command.prefix})
        entries: list[Entry] = []
        while True:
            reply = yield from _reply_to(self._request("scan", **arguments))
            items = reply.value.get("Items", ())
            entries += readable(((item.get(KEY), partial(_entry, item)) for item in items), "item")
            if "LastEvaluatedKey" not in reply.value:
                return Reply(reply.time, entries=tuple(entries))
            arguments["ExclusiveStartKey"] = reply.value["LastEvaluatedKey"]

    def _update(self, command: Change) -> AwsRequest:
        condition, names = command.condition, {}
        if "#key" in condition:
            names["ExpressionAttributeNames"] = {"#key": KEY}
        return self._write(
            "update_item", command.name, condition, command.values, UpdateExpression=command.update, **names
        )

    def _write(
        self, method: str, name: str, condition: str, values: Mapping[str, str | int], **more: Any
    ) -> AwsRequest:
        if values:
            more["ExpressionAttributeValues"] = _typed(values)
        return self._request(
            method,
            Key=_key(name),
            ConditionExpression=condition,
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **more,
        )

    def _request(self, method: str, **arguments: Any) -> AwsRequest:
        return AwsRequest(method, {"TableName": self.name, **arguments}, (CONDITION_FAILED,))


def _reply_to(request: AwsRequest) -> Program[AwsRequest, AwsReply, AwsReply]:
    """Return the reply to ``request``. :raises kit.ErrorReply: it does not come from DynamoDB."""
    reply = yield request
    content_type = reply.value["ResponseMetadata"]["HTTPHeaders"].get("content-type", "")
    if not content_type.startswith(_CONTENT_TYPE):  # a proxy's sign-in page: botocore accepts any 200 as a success
        what = f"the reply is not DynamoDB's: its content type is {content_type!r:.100}"
        hint = "is there a proxy in between, or another server at the endpoint?"
        raise kit.ErrorReply(what, kit.Failure.UNREACHABLE, hint)
    return reply


def _done(reply: AwsReply) -> Reply:
    return Reply(reply.time, not reply.code, _entry(reply.value.get("Item")))


def _key(name: str) -> dict[str, Any]:
    return {KEY: {"S": name}}


def _typed(values: Mapping[str, str | int]) -> dict[str, Any]:
    return {f":{name}": {"S": value} if isinstance(value, str) else {"N": str(value)} for name, value in values.items()}


def _entry(item: Mapping[str, Any] | None) -> Entry | None:
    """:raises ValueError: the item is not a lock record."""
    if not item:
        return None
    try:
        fields = {name: item[name]["S"] for name in (KEY, "lockUntil", "lockedAt", "lockedBy")}
        token, version, fire_time = (item.get(name) for name in ("fencingToken", "leaseVersion", "lastFireTime"))
        record = LockRecord(
            fields[KEY],
            fields["lockedBy"],
            parse_moment(fields["lockedAt"]),
            parse_moment(fields["lockUntil"]),
            int(token["N"]) if token else None,
            parse_moment(fire_time["S"]) if fire_time else None,
            read_at=UNREAD,
        )
        is_free = CLAIM_MARK in record.locked_by and item.get("releasedBy", {}).get("S") == record.locked_by
        if record.holder != record.locked_by:  # not written by ShedLock for Java
            is_ended = item.get("endedBy", {}).get("S") == record.locked_by
            record = replace(record, is_released=is_free or is_ended)
        version = int(version["N"]) if version else None
        return Entry(record, is_free, fields["lockUntil"], fields["lockedAt"], version)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a lock record: {item!r:.200}") from error


def parse_moment(text: str) -> datetime:
    """Return the moment in an item. ShedLock for Java writes milliseconds; any number of digits is accepted."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def milliseconds(moment: datetime) -> str:
    """Return ``moment`` cut to milliseconds, as ShedLock for Java writes it. These texts sort like the times."""
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def milliseconds_up(moment: datetime) -> str:
    """Return :func:`milliseconds`, but rounded up."""
    return milliseconds(moment + _MILLISECOND - timedelta(microseconds=1))


def surely_past(moment: datetime) -> str:
    """Return the text to compare ``lockUntil`` with: a text that is not greater means a time before ``moment``.

    It is a millisecond earlier, because further digits would make a later moment look earlier than this text's "Z".
    """
    return milliseconds(moment - _MILLISECOND)


def microseconds(moment: datetime) -> str:
    """Return a fire time as text. These texts sort like the times."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
