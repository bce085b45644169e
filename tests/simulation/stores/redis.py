"""The real scripts for Redis, in a real Lua 5.1, with a small ``redis.call``: hashes, expiry, and a given time."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Hashable
from typing import Any

import lupa.lua51
from redis.exceptions import ResponseError

from shedlock_py.providers.kit import StorePrograms
from shedlock_py.providers.redis.commands import Call, Command, Scan, Script
from shedlock_py.providers.redis.redis_clients import BaseClient
from shedlock_py.providers.redis.redis_programs import RedisPrograms
from tests.simulation.stores.times import ExactTime

Hash = dict[bytes, bytes]


class RedisModelStore(ExactTime):
    """A Redis server with hashes only."""

    def __init__(self, key_prefix: str = "shedlock") -> None:
        self.programs: StorePrograms = RedisPrograms(key_prefix, BaseClient({}))
        self._hashes: dict[bytes, Hash] = {}
        self._expiry: dict[bytes, int] = {}
        """When keys expire, in milliseconds since 1970."""
        self._now_us = 0
        self._scripts: dict[str, Any] = {}
        self._lua = lupa.lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False, register_eval=False)
        self._table: Callable[..., Any] = self._lua.table_from
        self._globals = self._lua.globals()
        self._commands: dict[bytes, Callable[..., Any]] = {
            b"TIME": self._time,
            b"HGET": self._hget,
            b"HMGET": self._hmget,
            b"HSET": self._hset,
            b"HDEL": self._hdel,
            b"PEXPIRE": self._pexpire,
            b"DEL": self._del,
        }
        self._globals[b"redis"] = self._table({b"call": self._call, b"pcall": self._call})

    def execute(self, command: Command, now_us: int) -> Any:
        self._now_us = now_us
        for key, at in list(self._expiry.items()):
            if at <= now_us // 1000:
                self._delete(key)
        if isinstance(command, Scan):
            return self._scan(command)
        assert isinstance(command, Call), "no program under test reads settings"
        return self._run(command)

    def snapshot(self) -> Hashable:
        hashes = self._hashes.items()
        return tuple(sorted((key, self._expiry.get(key), tuple(sorted(fields.items()))) for key, fields in hashes))

    def restore(self, snapshot: Hashable) -> None:
        rows: Any = snapshot
        self._hashes = {key: dict(fields) for key, _, fields in rows}
        self._expiry = {key: at for key, at, _ in rows if at is not None}

    # Scripts

    def _run(self, command: Call) -> Any:
        function = self._scripts.get(command.script.sha)
        if function is None:
            function = self._scripts[command.script.sha] = self._compile(command.script)
        self._globals[b"KEYS"] = self._table(command.keys)
        self._globals[b"ARGV"] = self._table([_text(arg) for arg in command.args])
        try:
            return _reply(function())
        except lupa.lua51.LuaError as error:
            # The server appends the position in the script.
            raise ResponseError(f"{error} script: {command.script.sha}, on @user_script.") from error

    def _compile(self, script: Script) -> Any:
        return self._lua.compile(script.text)

    def _call(self, command: bytes, *args: Any) -> Any:
        return self._commands[command](*map(_text, args))

    # Commands. Lua has False for nil of the protocol.

    def _time(self) -> Any:
        seconds, microseconds = divmod(self._now_us, 1_000_000)
        return self._table([b"%d" % seconds, b"%d" % microseconds])

    def _hget(self, key: bytes, field: bytes) -> bytes | bool:
        return self._hashes.get(key, {}).get(field, False)

    def _hmget(self, key: bytes, *names: bytes) -> Any:
        fields = self._hashes.get(key, {})
        return self._table([fields.get(name, False) for name in names])

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        fields = self._hashes.setdefault(key, {})
        before = len(fields)
        fields.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(fields) - before

    def _hdel(self, key: bytes, *names: bytes) -> int:
        fields = self._hashes.get(key, {})
        deleted = sum(fields.pop(name, None) is not None for name in names)
        if not fields:
            self._delete(key)
        return deleted

    def _pexpire(self, key: bytes, milliseconds: bytes) -> int:
        if key not in self._hashes:
            return 0
        self._expiry[key] = self._now_us // 1000 + int(milliseconds)
        return 1

    def _del(self, *keys: bytes) -> int:
        return sum(self._delete(key) for key in keys)

    def _delete(self, key: bytes) -> bool:
        self._expiry.pop(key, None)
        return self._hashes.pop(key, None) is not None

    def _scan(self, command: Scan) -> list[bytes]:
        # fnmatch does not know backslashes: Redis escapes with a backslash, fnmatch with brackets.
        pattern = re.sub(rb"\\([*?\[\]^\\])", lambda found: b"[" + found[1] + b"]", command.pattern)
        return [key for key in self._hashes if fnmatch.fnmatchcase(key, pattern)]


def _text(value: bytes | float) -> bytes:
    """An argument as Redis gets it."""
    return value if isinstance(value, bytes) else b"%.17g" % value


def _reply(value: Any) -> Any:
    """Return a script's result as redis-py shows it: numbers are cut to integers, and False is None."""
    if isinstance(value, bool):
        return 1 if value else None
    if isinstance(value, int | float):
        return int(value)
    if lupa.lua51.lua_type(value) == "table":
        if value[b"err"] is not None:
            raise ResponseError(value[b"err"].decode())
        replies: list[Any] = []
        while (item := value[len(replies) + 1]) is not None:
            replies.append(_reply(item))
        return replies
    return value
