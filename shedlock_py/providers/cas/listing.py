"""Lists of records in a store that other programs may write to as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from shedlock_py.events import logger

T = TypeVar("T")


def readable(found: Iterable[tuple[object, Callable[[], T | None]]], kind: str = "key") -> Iterator[T]:
    """Yield the records that the functions return. One that is not a lock record must not hide others.

    :param found: for each key, a function that returns its record, or None if the record was deleted.
    :param kind: the word for a key, for the warning.
    """
    for key, read in found:
        try:
            record = read()
        except ValueError as error:
            logger.warning("records: the %s %r is left out: %s", kind, key, error)
        else:
            if record is not None:
                yield record
