"""The Lua scripts of the operations; each is described in its first line."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: bytes
    sha: str
    """What Redis knows it by, once it has seen it."""


@cache
def script(name: str) -> Script:
    folder = files("shedlock_py.providers.redis").joinpath("lua")
    text = folder.joinpath("numbers.lua").read_bytes() + folder.joinpath(f"{name}.lua").read_bytes()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
