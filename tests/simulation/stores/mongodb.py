"""The real commands for MongoDB, with a small interpreter of their operators.

Any other operator, method or option is an error here. Define the meaning of a new operator here:
``test_model_stores.py`` compares it with a server.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timedelta
from typing import Any

from bson import Int64
from pymongo.errors import OperationFailure
from pymongo.results import DeleteResult, UpdateResult

from shedlock_py.providers.kit import StorePrograms, parse_limits
from shedlock_py.providers.mongodb.commands import Command
from shedlock_py.providers.mongodb.mongo_programs import MongoPrograms
from tests.simulation.stores.times import EPOCH, ExactTime

Document = dict[str, Any]
_MILLISECOND = timedelta(milliseconds=1)


class MongoModelStore(ExactTime):
    """A collection. With ``history``, a snapshot also has the runs, and has no hash."""

    def __init__(self, history: int = 0) -> None:
        limits = parse_limits(None, None, {}, is_managed=False, history=history)
        self.programs: StorePrograms = MongoPrograms("test.shedlock", "30d", **limits)
        self._documents: dict[str, Document] = {}
        self._methods: dict[str, Callable[..., Any]] = {
            "find_one_and_update": self._find_one_and_update,
            "update_one": self._update_one,
            "delete_many": self._delete_many,
            "aggregate": self._aggregate,
        }

    def execute(self, command: Command, now_us: int) -> Any:
        now = EPOCH + now_us // 1000 * _MILLISECOND
        return self._methods[command.method](now=now, **command.arguments)

    def snapshot(self) -> Hashable:
        return tuple(sorted((name, tuple(document.items())) for name, document in self._documents.items()))

    def restore(self, snapshot: Hashable) -> None:
        rows: Any = snapshot
        self._documents = {name: dict(items) for name, items in rows}

    # Methods of a collection, with the arguments of the programs. The collation "simple" is Python's order.

    def _find_one_and_update(
        self,
        now: datetime,
        filter: Document,
        update: list[Document],
        upsert: bool,
        projection: Document,
        return_document: bool,
        collation: object,
    ) -> Document | None:
        assert return_document  # the document after the update
        found = self._matching(filter, now)
        if not found and not upsert:
            return None
        document = found[0] if found else {"_id": filter["_id"]}
        after = self._documents[document["_id"]] = _updated(document, update, now)
        return {field: after[field] for field in after if field == "_id" or field in projection}

    def _update_one(self, now: datetime, filter: Document, update: list[Document], collation: object) -> UpdateResult:
        found = self._matching(filter, now)[:1]
        changed = 0
        for document in found:
            after = _updated(document, update, now)
            changed += after != document
            self._documents[document["_id"]] = after
        return UpdateResult({"n": len(found), "nModified": changed}, True)

    def _delete_many(self, now: datetime, filter: Document) -> DeleteResult:
        found = self._matching(filter, now)
        for document in found:
            del self._documents[document["_id"]]
        return DeleteResult({"n": len(found)}, True)

    def _aggregate(self, now: datetime, pipeline: list[Document], collation: object) -> list[Document]:
        match, *stages = pipeline
        return [_updated(document, stages, now) for document in self._matching(match["$match"], now)]

    def _matching(self, filter: Mapping[str, Any], now: datetime) -> list[Document]:
        name = filter.get("_id")
        documents = self._documents.values()
        if isinstance(name, str):
            documents = [self._documents[name]] if name in self._documents else []  # type: ignore[assignment]
        return [document for document in documents if _matches(document, filter, now)]


def _matches(document: Document, filter: Mapping[str, Any], now: datetime) -> bool:
    for field, wanted in filter.items():
        if field == "$expr":
            if not _is_true(_evaluate(wanted, document, {"NOW": now})):
                return False
        elif isinstance(wanted, dict):
            value = document.get(field)
            if not all(_QUERIES[operator](value, operand) for operator, operand in wanted.items()):
                return False
        elif document.get(field) != wanted:  # None also matches a missing field
            return False
    return True


_QUERIES: dict[str, Callable[[Any, Any], bool]] = {
    "$gte": lambda value, operand: bool(value >= operand),
    "$lte": lambda value, operand: bool(value <= operand),
    "$ne": lambda value, operand: bool(value != operand),
    "$type": lambda value, operand: {"date": datetime}[operand] is type(value),
    "$elemMatch": lambda value, operand: (
        isinstance(value, list)
        and any(all(each.get(field) == wanted for field, wanted in operand.items()) for each in value)
    ),
}


def _updated(document: Document, stages: list[Document], now: datetime) -> Document:
    """Apply a pipeline to the document."""
    variables = {"NOW": now}
    for stage in stages:
        [(operator, operand)] = stage.items()
        match operator:
            case "$set":
                values = {field: _evaluate(expression, document, variables) for field, expression in operand.items()}
                document = _merged([document, values])
            case "$unset":
                document = {field: value for field, value in document.items() if field != operand}
            case "$replaceWith":
                document = {"_id": document["_id"], **_evaluate(operand, document, variables)}
            case _:
                raise NotImplementedError(operator)
    return document


# Expressions


class _Missing:
    """A field that the document does not have."""


_MISSING = _Missing()


def _evaluate(expression: Any, document: Document, variables: Mapping[str, Any]) -> Any:
    if isinstance(expression, str):
        if not expression.startswith("$"):
            return expression
        if expression.startswith("$$"):
            variable, _, field = expression[2:].partition(".")
            value = {**variables, "ROOT": document}[variable]
            return value.get(field, _MISSING) if field else value
        return document.get(expression[1:], _MISSING)
    if isinstance(expression, dict):
        for operator, operand in expression.items():
            if operator == "$literal":
                return operand
            if operator == "$cond":
                condition, yes, no = operand
                return _evaluate(
                    yes if _is_true(_evaluate(condition, document, variables)) else no, document, variables
                )
            if operator == "$and":
                return all(_is_true(_evaluate(each, document, variables)) for each in operand)
            if operator == "$or":
                return any(_is_true(_evaluate(each, document, variables)) for each in operand)
            if operator in ("$map", "$filter"):
                return _each(operator, operand, document, variables)
            if operator.startswith("$"):
                return _OPERATORS[operator](_evaluate(operand, document, variables))
        values = {field: _evaluate(each, document, variables) for field, each in expression.items()}
        return {field: value for field, value in values.items() if value is not _MISSING}
    if isinstance(expression, list):
        return [_evaluate(each, document, variables) for each in expression]
    return expression


def _each(operator: str, operand: Document, document: Document, variables: Mapping[str, Any]) -> list[Any]:
    """``$map`` or ``$filter`` of an array of documents."""
    scopes = [{**variables, operand["as"]: each} for each in _evaluate(operand["input"], document, variables)]
    if operator == "$map":
        return [_evaluate(operand["in"], document, scope) for scope in scopes]
    return [scope[operand["as"]] for scope in scopes if _is_true(_evaluate(operand["cond"], document, scope))]


def _is_true(value: Any) -> bool:
    return value is not _MISSING and value is not None and value is not False and value != 0


_ORDER = {_Missing: 0, type(None): 1, int: 2, Int64: 2, float: 2, str: 3, dict: 4, list: 5, bool: 6, datetime: 7}
"""The order of BSON's types in aggregations."""


def _key(value: Any) -> tuple[int, Any]:
    order = _ORDER[type(value)]
    return order, (value if order > 1 else 0)


def _compare(decide: Callable[[Any, Any], bool]) -> Callable[[list[Any]], bool]:
    return lambda pair: decide(_key(pair[0]), _key(pair[1]))


def _is_absent(value: Any) -> bool:
    return value is None or value is _MISSING


def _to_long(value: Any) -> Any:
    match value:
        case datetime():
            return Int64((value - EPOCH) // _MILLISECOND)
        case int() | float():
            return Int64(int(value))
        case str():
            text = f"Failed to parse number '{value}' in $convert with no onError value: Did not consume whole string."
            raise OperationFailure(text, 241)
    if _is_absent(value):
        return None
    raise OperationFailure(f"Unsupported conversion from {type(value).__name__} to long in $convert", 241)


def _numbers(operator: str, values: list[Any], more: tuple[type, ...] = ()) -> None:
    for value in values:
        if not isinstance(value, (int, float, *more)) or isinstance(value, bool):
            raise OperationFailure(f"{operator} only supports numeric types, not {type(value).__name__}", 14)


def _add(values: list[Any]) -> Any:
    if any(_is_absent(value) for value in values):
        return None
    _numbers("$add", values, (datetime,))
    dates = [value for value in values if isinstance(value, datetime)]
    number = sum(value for value in values if not isinstance(value, datetime))
    return dates[0] + number * _MILLISECOND if dates else Int64(number)


def _multiply(values: list[Any]) -> Any:
    if any(_is_absent(value) for value in values):
        return None
    _numbers("$multiply", values)
    return Int64(values[0] * values[1])


def _subtract(values: list[Any]) -> Any:
    if any(_is_absent(value) for value in values):
        return None
    _numbers("$subtract", values)
    return Int64(values[0] - values[1])


def _max(values: list[Any]) -> Any:
    return max((value for value in values if not _is_absent(value)), key=_key, default=None)


def _merged(documents: list[Document]) -> Document:
    merged: Document = {}
    for document in documents:
        for field, value in document.items():
            if value is _MISSING:
                merged.pop(field, None)
            else:
                merged[field] = value
    return merged


_OPERATORS: dict[str, Callable[[Any], Any]] = {
    "$eq": _compare(lambda left, right: left == right),
    "$ne": _compare(lambda left, right: left != right),
    "$gt": _compare(lambda left, right: left > right),
    "$lt": _compare(lambda left, right: left < right),
    "$lte": _compare(lambda left, right: left <= right),
    "$not": lambda values: not _is_true(values[0]),
    "$ifNull": lambda values: values[1] if _is_absent(values[0]) else values[0],
    "$toLong": _to_long,
    "$add": _add,
    "$multiply": _multiply,
    "$subtract": _subtract,
    "$max": _max,
    "$mergeObjects": _merged,
    "$isArray": lambda values: isinstance(values[0], list),
    "$concatArrays": lambda values: [each for array in values for each in array],
    "$slice": lambda values: values[0][values[1] :],  # the last elements: the number is negative
}
