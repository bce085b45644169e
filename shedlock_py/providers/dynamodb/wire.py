"""The commands of the programs, as requests to DynamoDB; and items of the table as lock records.

An item has the attributes of ShedLock for Java (``_id``, ``lockUntil``, ``lockedAt``, ``lockedBy``, moments as text
with milliseconds), so both can use one table, and these:

``fencingToken``    a number
``leaseVersion``    a number: 0 at the acquisition, and one more with each write of its holder
``lastFireTime``    text with microseconds
``releasedBy``      the ``lockedBy`` of the acquisition that was released: while the two are equal, the lock is free
``endedBy``         the same of one that was released with a minimum hold, which keeps the lock for a while
``expiresAt``       seconds since 1970, for DynamoDB's TTL
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from shedlock_py.events import logger
from shedlock_py.model.record import LockRecord
from shedlock_py.providers import kit
from shedlock_py.providers.aws import AwsReply, AwsRequest, Sleep
from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.cas.cas_programs import UNREAD
from shedlock_py.runtime.program import Program

CONDITION_FAILED = "ConditionalCheckFailedException"
KEY = "_id"
CLAIM_MARK = "#"
"""Before the claim id. A holder without one, of ShedLock for Java, is the same in its next acquisition, so its
``releasedBy`` says nothing. shedlock_py 0.1.0 wrote that when it freed such a lock by force."""
EXPIRES_AT = "expiresAt"
KEPT_FOR = timedelta(days=30)
"""How long DynamoDB's TTL keeps a lock that is not used."""
_MILLISECOND = timedelta(milliseconds=1)
_CONTENT_TYPE = "application/x-amz-json"


class ForeignReplyError(Exception):
    """A reply that is not DynamoDB's, such as the sign-in page of a proxy: botocore takes any 200 for a success."""


@dataclass(frozen=True, slots=True)
class Read(kit.Command):
    """The reply's ``entry`` is that of ``name``, or None."""

    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """Change the item of ``name``, or make it, if ``condition`` holds. The reply's ``entry`` is the one that did not.

    :ivar update: an update expression; ``values`` are those in it and in the condition, without the colon.
    :ivar can_grant: it can grant the lock.
    """

    name: str
    update: str
    condition: str
    values: Mapping[str, str | int] = field(default_factory=dict)
    can_grant: bool = False


@dataclass(frozen=True, slots=True)
class Delete(kit.Command):
    """Delete the item of ``entry`` if it is unchanged."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class List(kit.Command):
    """The reply's ``entries`` are all those whose names start with ``prefix``."""

    prefix: str


Command = Read | Change | Delete | List


class Reply(NamedTuple):
    """What became of a command, and the server's time."""

    time: ServerTime
    is_done: bool = True
    entry: Entry | None = None
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """An item.

    :ivar is_free: it was released, so it is free whatever the clocks say.
    :ivar lock_until: as the item has it; ``locked_at`` too.
    :ivar version: its ``leaseVersion``; None if it has none, as items of ShedLock for Java and of shedlock_py 0.1.0.
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
        """The exchange of the clients. It passes on requests, which create the table."""
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
            entries += _entries(reply.value.get("Items", ()))
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
    """The reply to ``request``. :raises ForeignReplyError: it is of something else than DynamoDB."""
    reply = yield request
    content_type = reply.value["ResponseMetadata"]["HTTPHeaders"].get("content-type", "")
    if not content_type.startswith(_CONTENT_TYPE):
        raise ForeignReplyError(f"the reply is not DynamoDB's: its content type is {content_type!r:.100}")
    return reply


def _done(reply: AwsReply) -> Reply:
    return Reply(reply.time, not reply.code, _entry(reply.value.get("Item")))


def _key(name: str) -> dict[str, Any]:
    return {KEY: {"S": name}}


def _typed(values: Mapping[str, str | int]) -> dict[str, Any]:
    return {f":{name}": {"S": value} if isinstance(value, str) else {"N": str(value)} for name, value in values.items()}


def _entries(items: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    for item in items:
        try:
            entry = _entry(item)
        except ValueError as error:  # an item that is no lock record must not hide the others
            logger.warning("records: an item is left out: %s", error)
        else:
            if entry is not None:
                yield entry


def _entry(item: Mapping[str, Any] | None) -> Entry | None:
    """:raises ValueError: the item is no lock record."""
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
        if record.holder != record.locked_by:  # not of ShedLock for Java
            is_ended = item.get("endedBy", {}).get("S") == record.locked_by
            record = replace(record, is_released=is_free or is_ended)
        version = int(version["N"]) if version else None
        return Entry(record, is_free, fields["lockUntil"], fields["lockedAt"], version)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a lock record: {item!r:.200}") from error


def parse_moment(text: str) -> datetime:
    """A moment as an item has it. ShedLock for Java always wrote milliseconds; any number of digits will do."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def milliseconds(moment: datetime) -> str:
    """``moment`` cut to milliseconds, as ShedLock for Java writes it: the order of such texts is that of time."""
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def milliseconds_up(moment: datetime) -> str:
    """The same, not earlier than ``moment``."""
    return milliseconds(moment + _MILLISECOND - timedelta(microseconds=1))


def surely_past(moment: datetime) -> str:
    """What to compare ``lockUntil`` with: a text that is not greater than this means a time before ``moment``.

    A millisecond earlier, as digits after the third would make a later moment look earlier than its "Z".
    """
    return milliseconds(moment - _MILLISECOND)


def microseconds(moment: datetime) -> str:
    """A fire time as text, whose order is that of time."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
