"""Lists of records in a store that other programs may write to as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from shedlock_py.events import logger
from shedlock_py.providers.cas.cas_programs import Entry


def readable(found: Iterable[tuple[object, Callable[[], object]]]) -> Iterator[Entry]:
    """Yield the entries that the functions return. One that is not a lock record must not hide others.

    :param found: for each key, a function that returns the entry. It may return something else for a deleted record.
    """
    for key, read in found:
        try:
            entry = read()
        except ValueError as error:
            logger.warning("records: the key %r is left out: %s", key, error)
        else:
            if isinstance(entry, Entry):
                yield entry
