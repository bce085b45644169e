"""The Lua scripts alone: edges of time, late copies, and the commands of Redis 5."""

import hashlib
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import pytest

from shedlock_py.providers.redis.commands import KEPT_MS, script
from tests.stores.redis.stores import send
from tests.support.redis import RedisEndpoint

IN_FRONT_OF_EACH = ["reading.lua", "history.lua"]
FOLDER = files("shedlock_py.providers.redis").joinpath("lua")
FILES = sorted(file.name for file in FOLDER.iterdir())
SCRIPTS = sorted({*FILES} - {*IN_FRONT_OF_EACH})
SINCE_REDIS_5 = {"TIME", "HMGET", "HGET", "HGETALL", "HSET", "PEXPIRE", "DEL", "HDEL", "HEXISTS", "INFO"}

NOW = 1_800_000_000_000_000
"""The server's clock in :data:`FROZEN` scripts, in microseconds."""
FROZEN = b"""local real = redis
local redis = {pcall = real.pcall, call = function(command, ...)
    if command == 'TIME' then return {'1800000000', '0'} end
    return real.call(command, ...)
end}
"""
TOLERANCE = 300_000_000
CLAIM = ("host#1", 60_000)
"""``locked_by``, and the lease's length in ms."""

Run = Callable[..., Any]


@pytest.fixture
def run(redis_server: RedisEndpoint, name: str) -> Iterator[Run]:
    """Run a script at :data:`NOW`, on a lock record and on a quorum server's record."""
    keys = f"test:{{{name}}}", f"test:{{{name}}}:node"

    def run(script_name: str, *args: object) -> Any:
        return client.eval(FROZEN + script(script_name).text, 2, *keys, *args)  # type: ignore[arg-type]  # bytes, too

    with redis_server.client() as client:
        yield run
        client.delete(*keys)


@pytest.fixture
def fields(redis_server: RedisEndpoint, name: str) -> Iterator[Callable[[], Any]]:
    with redis_server.client() as client:
        yield lambda: client.hgetall(f"test:{{{name}}}")


@pytest.mark.parametrize(
    ("operation", "more", "too_late"),
    [("acquire", (KEPT_MS, TOLERANCE), -1), ("take_over", (KEPT_MS, TOLERANCE, "", ""), -1)],
)
def test_i11_the_border_of_the_fire_time_tolerance(
    run: Run, operation: str, more: tuple[object, ...], too_late: int
) -> None:
    assert run(operation, *CLAIM, NOW + TOLERANCE + 1, *more) == too_late
    assert run(operation, *CLAIM, NOW + TOLERANCE, *more) == NOW


def test_i11_the_border_of_the_fire_time_tolerance_in_a_vote(run: Run) -> None:
    for fire_time, kind in ((NOW + TOLERANCE + 1, 5), (NOW + TOLERANCE, 4)):  # too late, and in quarantine
        assert run("quorum_vote", *CLAIM, fire_time, 60_000, TOLERANCE, "")[0] == kind


@pytest.mark.parametrize("has_history", [False, True])
@pytest.mark.parametrize("end", ["release", "undo"])
@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i12_a_copy_of_a_claim_that_comes_after_its_end_changes_nothing(
    run: Run, fields: Callable[[], Any], operation: str, end: str, has_history: bool
) -> None:
    start, ending = ((3, ""), (3, *(("ok", "") if end == "release" else ()))) if has_history else ((), ())
    claim = (operation, *CLAIM, "", KEPT_MS, TOLERANCE, *(["", ""] if operation == "take_over" else []), *start)
    token = run(*claim)
    granted = fields()
    assert run(*claim) == token, "repeated because the reply was lost"
    assert fields() == granted
    assert (b"run:0" in granted, b"run_slot" in granted) == (has_history, has_history)
    assert run(end, CLAIM[0], 0 if end == "release" else "", KEPT_MS, *ending) == 1
    before = fields()
    assert before[b"lock_until"] == str(NOW).encode()
    assert run(*claim) == (0 if operation == "acquire" else token)
    assert fields() == before
    if end == "release":
        assert run("release", CLAIM[0], 0, KEPT_MS, *((3, "failed", "again") if has_history else ())) == 1
        assert fields() == before


def test_a_run_ends_once(run: Run, fields: Callable[[], Any]) -> None:
    """A release's copy may come after the next acquire, or after the lease was lost."""
    claim = (60_000, "", KEPT_MS, TOLERANCE)
    first = run("acquire", "host#1", *claim, 3, "")
    assert run("release", "host#1", 0, KEPT_MS, 3, "ok", "") == 1
    second = run("acquire", "host#2", *claim, 3, NOW + 5)
    third = run("take_over", "host#3", *claim, second, "", 3, "")
    assert run("release", "host#2", 0, KEPT_MS, 3, "failed", "Boom") == 0
    ended = fields()
    for late in ("host#1", "host#2"):
        assert run("release", late, 0, KEPT_MS, 3, "cancelled", "") == 0
    assert fields() == ended
    assert ended[b"run:0"].decode().split("\n") == [str(first), str(NOW), "", "", "host#1", str(NOW), "ok", ""]
    assert ended[b"run:1"].decode().split("\n")[3:] == [str(NOW + 5), "host#2", str(NOW), "lost", "Boom"]
    assert ended[b"run:2"].decode().split("\n") == [str(third), str(NOW), "", "", "host#3"]


def test_every_command_exists_in_redis_5() -> None:
    found: dict[str, set[str]] = {}
    for file in FILES:
        text = FOLDER.joinpath(file).read_text()
        commands = re.findall(r"redis\.p?call\(\s*'(\w+)'", text)
        assert len(commands) == len(re.findall(r"redis\.p?call", text)), "no command comes from a variable"
        found[file] = set(commands) - SINCE_REDIS_5
    assert found
    assert {file: newer for file, newer in found.items() if newer} == {}


def test_redis_knows_each_script_by_the_hash_that_is_sent(redis_server: RedisEndpoint) -> None:
    assert SCRIPTS
    with redis_server.client() as client:
        for name in SCRIPTS:
            sent = script(name.removesuffix(".lua"))
            assert sent.text == b"".join(FOLDER.joinpath(part).read_bytes() for part in (*IN_FRONT_OF_EACH, name))
            assert sent.sha == hashlib.sha1(sent.text).hexdigest()
            assert send(client, "SCRIPT LOAD", sent.text) == sent.sha
