"""Fingerprints of suspended programs: all objects that a program reaches, as a comparable value.

Two programs with the same fingerprint behave the same from now on. A moment is stored as its distance in ticks.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from datetime import datetime, timedelta
from functools import partial
from types import FunctionType, GeneratorType
from typing import Any

from pymongo.collation import Collation

from shedlock_py import Lease, LockRequest
from shedlock_py.model.lease import Claim, Extension, TrustWindow
from shedlock_py.model.record import LockRecord
from shedlock_py.providers.kit import StorePrograms, Undo
from shedlock_py.providers.kit.operation import Operation
from shedlock_py.providers.mongodb.commands import Command
from shedlock_py.providers.redis.commands import Script
from shedlock_py.providers.sqlalchemy.statements import Statement
from tests.exhaustive.times import NOW, TICK, HolderClock, is_urgent

_ATOMS = (str, bytes, bool, type(None), datetime, timedelta, enum.Enum, type)


class ClaimIds:
    """Gives a claimant the same claim id each time."""

    def __init__(self, claimant: str) -> None:
        self._claim_id = claimant * 32

    def __call__(self) -> str:
        return self._claim_id


_CONSTANTS = (StorePrograms, HolderClock, ClaimIds, Collation)
_MACHINE_CLOCK = "now_us"
"""A value in the statements for SQLite, which the model store replaces."""


class Walk:
    """A walk through objects.

    :param longest: the longest lease, in ticks. A lease from an older request has already ended.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []
        """The objects that were seen: kept, so that no new object gets the same id."""

    def value(self, item: Any) -> Hashable:
        if isinstance(item, float):
            return self._moment(item) if is_urgent(item) else item
        if isinstance(item, int) and is_urgent(item / 1e6):
            return "the holder's clock", item % 1_000_000
        if isinstance(item, (*_ATOMS, int)):
            return item
        if isinstance(item, _CONSTANTS):
            return type(item).__name__
        if isinstance(item, tuple | list):
            return type(item).__name__, *(self.value(each) for each in item)
        if id(item) in self._seen:
            return "seen", self._seen[id(item)]
        self._seen[id(item)] = len(self._seen)
        self._kept.append(item)
        return self._structure(item)

    def _structure(self, item: Any) -> Hashable:
        if isinstance(item, dict):
            return tuple((self.value(key), self.value(item[key])) for key in item if key != _MACHINE_CLOCK)
        if isinstance(item, GeneratorType):
            if item.gi_frame is None:
                return "ended"
            place = item.gi_code.co_qualname, item.gi_frame.f_lasti
            return *place, self.value(dict(item.gi_frame.f_locals)), self.value(item.gi_yieldfrom)
        if isinstance(item, FunctionType):
            cells = [cell.cell_contents for cell in item.__closure__ or ()]
            return item.__qualname__, self.value(cells)
        if isinstance(item, partial):
            return item.func.__qualname__, self.value(item.args)
        if isinstance(item, BaseException):
            return type(item).__name__
        if isinstance(item, Script | Statement | Undo):
            fields = {name: getattr(item, name) for name in item.__dataclass_fields__}
        elif isinstance(item, Lease | Claim | TrustWindow | Operation | LockRequest | LockRecord | Command):
            fields = vars(item)
        else:
            raise TypeError(f"what is in it? {item!r}")
        return type(item).__name__, *((name, self._field(item, value)) for name, value in fields.items())

    def _field(self, item: object, value: Any) -> Hashable:
        """Leave out a moment once the lease that counts from it would have ended."""
        match item:
            case Lease() if isinstance(value, float):  # the grant
                matters_for = item.lock_at_least_for.total_seconds()
            case Claim() if isinstance(value, float):  # when the request was sent
                matters_for = item.request.lock_at_most_for.total_seconds()
            case Extension() if isinstance(value, float):
                matters_for = item.lock_for.total_seconds()
            case TrustWindow() if isinstance(value, float):  # its end
                matters_for = 0.0
            case _:
                return self.value(value)
        return "over" if value < NOW - matters_for + TICK / 2 else self.value(value)

    def _moment(self, seconds: float) -> Hashable:
        return "a moment", min(max(round((seconds - NOW) / TICK), -self._longest), self._longest)
