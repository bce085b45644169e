"""Names of objects for lock names. Kubernetes takes DNS names only (RFC 1123)."""

from __future__ import annotations

import re
from hashlib import sha256

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DIGEST = re.compile(r"\.x[0-9a-f]{40}$")


def is_label(text: str) -> bool:
    """Whether it can be the name of a namespace."""
    return len(text) <= 63 and re.fullmatch(_LABEL, text) is not None


def object_name(lock_name: str) -> str:
    """The lock name itself where Kubernetes takes it; another one with a digest, for people to recognise, where not.

    A lock name that looks as if it had a digest gets one, too. So two lock names never have the same object name.
    """
    if _OBJECT_NAME.fullmatch(lock_name) and not _DIGEST.search(lock_name):
        return lock_name
    readable = re.sub("[^a-z0-9]+", "-", lock_name.lower()).strip("-") or "lock"
    return f"{readable}.x{sha256(lock_name.encode()).hexdigest()[:40]}"
