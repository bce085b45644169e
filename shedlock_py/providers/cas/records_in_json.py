"""Records as JSON, for stores that keep a text for each record."""

from __future__ import annotations

import json
from typing import Any

from shedlock_py.model.text import parsed
from shedlock_py.providers.cas.cas_programs import UNREAD, Entry, Write
from shedlock_py.providers.kit import record_from_json, record_to_json


def write_to_json(write: Write, /, **others: str | None) -> str:
    """Return what ``write`` stores, and other fields."""
    return json.dumps({**record_to_json(write.record), **({"free": True} if write.is_free else {}), **others})


def fields_from_json(text: str | bytes) -> dict[str, Any]:
    """:raises ValueError: ``text`` is not a JSON object."""
    try:
        fields = parsed(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"not a lock record: {text!r:.200}")
    return fields


def entry_from_fields(name: str, fields: dict[str, Any], version: Any) -> Entry:
    """Return the entry with the fields of :func:`write_to_json`, without other fields.

    :raises ValueError: the fields are not a record's.
    """
    is_free = fields.pop("free", False) is True
    return Entry(record_from_json(name, fields, read_at=UNREAD), version, is_free)
