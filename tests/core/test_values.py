"""Frozen dataclasses that share what dataclass() would generate for each are as those for which it does."""

import copy
import dataclasses
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import LockRecord, LockRequest, LockSkipped, Settings
from shedlock_py._values import Value
from tests.core.dataclass_twins import as_dataclass_makes_it, assert_frozen

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)

VALUES: list[Any] = [
    LockRequest("job", "10m", "1s", "me", NOON),
    LockRecord("job", "me#1", NOON, NOON + timedelta(seconds=5), 7, None, read_at=NOON),
    Settings(holder="me"),
    LockSkipped("job", "held", timedelta(0)),
]


def of_type(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize("value", VALUES, ids=of_type)
def test_it_is_shown_hashed_and_matched_as_any_dataclass(value: Any) -> None:
    generated = as_dataclass_makes_it(value)
    assert repr(value) == repr(generated)
    assert hash(value) == hash(generated)
    assert type(value).__match_args__ == generated.__match_args__
    assert dataclasses.asdict(value) == dataclasses.asdict(generated)
    assert type(value).__dataclass_params__.frozen


@pytest.mark.parametrize("value", VALUES, ids=of_type)
def test_it_is_equal_to_one_of_its_own_kind_and_values_only(value: Any) -> None:
    assert value == copy.copy(value) == dataclasses.replace(value)
    assert value != as_dataclass_makes_it(value)
    assert value.__eq__(None) is NotImplemented
    for field in dataclasses.fields(value):
        changed = copy.copy(value)
        object.__setattr__(changed, field.name, "another")
        assert (value == changed) is (not field.compare), field.name
        assert (hash(value) == hash(changed)) is (not field.compare), field.name


@pytest.mark.parametrize("value", VALUES, ids=of_type)
def test_it_is_frozen(value: Any) -> None:
    assert_frozen(value)


@pytest.mark.parametrize("value", VALUES, ids=of_type)
def test_it_survives_pickling(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("value", VALUES, ids=of_type)
def test_nothing_is_generated_for_it_that_all_have_in_common(value: Any) -> None:
    assert isinstance(value, Value)
    assert {"__eq__", "__hash__", "__repr__"} & vars(type(value)).keys() == set()
