"""Frozen dataclasses that share methods, beside those for which dataclass() generates all of them."""

import dataclasses
from typing import Any

import pytest


def as_dataclass_makes_it(value: Any) -> Any:
    """The same values in a dataclass of the same name and fields, all of whose methods are generated."""
    fields = dataclasses.fields(value)
    specified = [
        (each.name, each.type, dataclasses.field(default=each.default, compare=each.compare, repr=each.repr))
        for each in fields
    ]
    generated = dataclasses.make_dataclass(type(value).__name__, specified, frozen=True)
    return generated(*(getattr(value, each.name) for each in fields))


def assert_frozen(value: Any) -> None:
    for name in [field.name for field in dataclasses.fields(value)] + ["something_new"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, "another")
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(value, name)
