"""The real requests for DynamoDB, with a small interpreter of the expressions that they use.

Any other method, function or operator is an error here. Define the meaning of a new operator here:
``test_model_stores.py`` compares it with DynamoDB Local.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import Any

from shedlock_py.providers.aws import AwsReply, AwsRequest
from shedlock_py.providers.dynamodb.dynamodb_programs import DynamoDBPrograms
from shedlock_py.providers.dynamodb.wire import CONDITION_FAILED, KEY, Change, Command, Delete, Reply, Table
from shedlock_py.providers.kit import StorePrograms
from shedlock_py.runtime.program import drive
from tests.simulation.stores.times import CLOCK_ERROR, TimeByDate

TABLE = "shedlock"
Item = dict[str, dict[str, str]]
Values = Mapping[str, Any]
"""``ExpressionAttributeValues`` and ``ExpressionAttributeNames`` in one."""
_Condition = Callable[[Item, Values], bool]
_TOKEN = re.compile(r"\s*(<=|<>|[()=<>,]|[:#]?\w+)")


class DynamoDBModelStore(TimeByDate):
    """A table without the TTL: 30 days are longer than a simulation."""

    def __init__(self, ahead: float = CLOCK_ERROR) -> None:
        super().__init__(ahead)
        self.programs: StorePrograms = DynamoDBPrograms(TABLE)
        self._exchange = Table(TABLE).exchange
        self._items: dict[str, Item] = {}
        self._methods: dict[str, Callable[..., AwsReply]] = {
            "get_item": self._get_item,
            "update_item": self._update_item,
            "delete_item": self._delete_item,
            "scan": self._scan,
        }

    def execute(self, command: Command, now_us: int) -> Reply:
        time = self.date(now_us)

        def send(request: Any) -> AwsReply:
            assert isinstance(request, AwsRequest)
            arguments = dict(request.arguments)
            assert arguments.pop("TableName") == TABLE
            assert arguments.pop("ConsistentRead", True)
            assert arguments.pop("ReturnValuesOnConditionCheckFailure", "ALL_OLD") == "ALL_OLD"
            reply = self._methods[request.method](**arguments)
            return reply._replace(time=time)

        reply: Reply = drive(self._exchange(command), send)
        return reply

    def has_changed(self, command: Command, reply: Reply) -> bool:
        return isinstance(command, Change | Delete) and reply.is_done

    def snapshot(self) -> Hashable:
        return tuple(sorted((key, tuple(sorted(_plain(item).items()))) for key, item in self._items.items()))

    def restore(self, snapshot: Hashable) -> None:
        rows: Any = snapshot
        self._items = {key: {name: {kind: text} for name, (kind, text) in fields} for key, fields in rows}

    # Methods of boto3's client, with the arguments that the table gives

    def _get_item(self, Key: Item) -> AwsReply:
        item = self._items.get(Key[KEY]["S"])
        return _reply({"Item": item} if item else {})

    def _update_item(self, Key: Item, UpdateExpression: str, ConditionExpression: str, **how: Values) -> AwsReply:
        key, values = Key[KEY]["S"], _values(how)
        item = self._items.get(key)
        if not _condition(ConditionExpression)(item or {}, values):
            return _reply({"Item": item} if item else {}, CONDITION_FAILED)
        self._items[key] = _updated(item or {KEY: {"S": key}}, UpdateExpression, values)
        return _reply({})

    def _delete_item(self, Key: Item, ConditionExpression: str, **how: Values) -> AwsReply:
        item = self._items.get(Key[KEY]["S"])
        if not _condition(ConditionExpression)(item or {}, _values(how)):
            return _reply({"Item": item} if item else {}, CONDITION_FAILED)
        self._items.pop(Key[KEY]["S"], None)
        return _reply({})

    def _scan(self, FilterExpression: str = "", **how: Values) -> AwsReply:
        is_wanted, values = _condition(FilterExpression), _values(how)
        return _reply({"Items": [item for item in self._items.values() if is_wanted(item, values)]})


def _reply(value: Mapping[str, Any], code: str = "") -> AwsReply:
    headers = {"content-type": "application/x-amz-json-1.0"}
    value = {**value, "ResponseMetadata": {"HTTPHeaders": headers}}
    return AwsReply(value, None, code)  # type: ignore[arg-type]  # ``execute`` fills it in


def _plain(item: Item) -> dict[str, tuple[str, str]]:
    return {name: next(iter(typed.items())) for name, typed in item.items()}


def _values(how: Mapping[str, Values]) -> Values:
    assert how.keys() <= {"ExpressionAttributeValues", "ExpressionAttributeNames"}, how
    return {**how.get("ExpressionAttributeValues", {}), **how.get("ExpressionAttributeNames", {})}


# Expressions


def _updated(item: Item, update: str, values: Values) -> Item:
    """``SET a = :value, b = c REMOVE d``. Values are read from the item before the update."""
    assignments, _, removed = update.partition("REMOVE ")
    changed = dict(item)
    for assignment in assignments.removeprefix("SET ").split(","):
        if assignment.strip():
            name, value = (part.strip() for part in assignment.split("="))
            changed[name] = values[value] if value.startswith(":") else item[value]
    for name in filter(None, removed.split(", ")):
        changed.pop(name.strip(), None)
    return changed


@cache
def _condition(text: str) -> _Condition:
    """Parse a condition expression to a function of the item (empty if the item does not exist) and the values."""
    if not text:
        return lambda item, values: True
    tokens = _TOKEN.findall(text)
    assert "".join(tokens) == re.sub(r"\s", "", text), text
    condition = _either(tokens)
    assert not tokens, f"what is {tokens} in {text}?"
    return condition


def _either(tokens: list[str]) -> _Condition:
    return _joined(tokens, _both, "OR", any)


def _both(tokens: list[str]) -> _Condition:
    return _joined(tokens, _single, "AND", all)


def _joined(
    tokens: list[str], parse: Callable[[list[str]], _Condition], word: str, combine: Callable[[Iterable[bool]], bool]
) -> _Condition:
    """Parse conditions with ``word`` between them."""
    parts = [parse(tokens)]
    while tokens and tokens[0] == word:
        tokens.pop(0)
        parts.append(parse(tokens))
    return parts[0] if len(parts) == 1 else lambda item, values: combine(part(item, values) for part in parts)


def _single(tokens: list[str]) -> _Condition:
    first = tokens.pop(0)
    if first == "(":
        inner = _either(tokens)
        assert tokens.pop(0) == ")"
        return inner
    if tokens[0] == "(":
        return _function(first, tokens)
    operator, other = tokens.pop(0), tokens.pop(0)
    return _comparison(first, _OPERATORS[operator], other)


def _function(function: str, tokens: list[str]) -> _Condition:
    end = tokens.index(")")
    arguments = [token for token in tokens[1:end] if token != ","]
    del tokens[: end + 1]
    match function, arguments:
        case "attribute_exists", [name]:
            return lambda item, values: values.get(name, name) in item
        case "attribute_not_exists", [name]:
            return lambda item, values: values.get(name, name) not in item
        case "begins_with", [name, prefix]:
            return lambda item, values: item[values.get(name, name)]["S"].startswith(values[prefix]["S"])
        case "contains", [name, part]:
            return lambda item, values: name in item and values[part]["S"] in item[name]["S"]
    raise NotImplementedError(function)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
}


def _comparison(name: str, compare: Callable[[Any, Any], bool], other: str) -> _Condition:
    """False if the item has no such attribute, or the attribute has a different type."""

    def holds(item: Item, values: Values) -> bool:
        one, another = _operand(name, item, values), _operand(other, item, values)
        return one is not None and another is not None and one[0] == another[0] and compare(one[1], another[1])

    return holds


def _operand(name: str, item: Item, values: Values) -> tuple[str, Any] | None:
    """Return its type and the compared value: the bytes of a text, or a number."""
    typed = values[name] if name.startswith(":") else item.get(name)
    if typed is None:
        return None
    [(kind, text)] = typed.items()
    return kind, int(text) if kind == "N" else text.encode()
