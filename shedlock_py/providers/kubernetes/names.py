"""Object names for lock names. Kubernetes accepts only DNS names (RFC 1123)."""

from __future__ import annotations

import re
from hashlib import sha256

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DIGEST = re.compile(r"\.x[0-9a-f]{40}$")


def is_label(text: str) -> bool:
    """Return whether ``text`` can be the name of a namespace."""
    return len(text) <= 63 and re.fullmatch(_LABEL, text) is not None


def object_name(lock_name: str) -> str:
    """Return the lock name if Kubernetes accepts it. If not, return a readable name with a digest.

    A lock name that looks like a name with a digest also gets a digest. So two lock names never share an object name.
    """
    if _OBJECT_NAME.fullmatch(lock_name) and not _DIGEST.search(lock_name):
        return lock_name
    readable = re.sub("[^a-z0-9]+", "-", lock_name.lower()).strip("-") or "lock"
    return f"{readable}.x{sha256(lock_name.encode()).hexdigest()[:40]}"
