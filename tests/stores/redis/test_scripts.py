"""The Lua scripts, as texts: what they say of themselves, and what a Redis 5 can do."""

import hashlib
import re
from importlib.resources import files

import pytest

from shedlock_py.providers.redis.scripts import script
from tests.stores.redis.stores import ask
from tests.support.redis import RedisEndpoint

IN_FRONT_OF_EACH = "numbers.lua"
SCRIPTS = sorted(
    file.name
    for file in files("shedlock_py.providers.redis").joinpath("lua").iterdir()
    if file.name != IN_FRONT_OF_EACH
)
SINCE_REDIS_5 = {
    "TIME",
    "HMGET",
    "HGET",
    "HSET",
    "PEXPIRE",
    "PEXPIREAT",
    "DEL",
    "EXISTS",
    "PTTL",
    "GET",
    "SET",
    "HDEL",
    "HEXISTS",
    "INFO",
}


def source(name: str) -> str:
    return files("shedlock_py.providers.redis").joinpath("lua", name).read_text()


def test_there_are_scripts() -> None:
    operations = {"acquire", "take_over", "extend", "release", "undo", "force_release", "forget_fire_time"}
    operations |= {"records", "prune"}
    assert operations <= {name.removesuffix(".lua") for name in SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_first_line_says_what_it_takes_and_replies(name: str) -> None:
    described = re.match(r"-- KEYS: (.+?)\. ARGV: (.+?)\. Reply: .+", source(name))
    assert described
    used = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", source(name))}
    if described[2] == "none":
        assert not used
    else:
        assert used == set(range(1, max(used) + 1)), "each argument is used"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_command_exists_in_redis_5(name: str) -> None:
    commands = re.findall(r"redis\.p?call\(\s*'(\w+)'", source(name))
    assert len(commands) == len(re.findall(r"redis\.p?call", source(name))), "no command comes from a variable"
    assert commands
    assert set(commands) <= SINCE_REDIS_5


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_key_is_one_of_KEYS(name: str) -> None:
    """A cluster sends a script to the server of its keys; it must not touch others."""
    for key in re.findall(r"redis\.p?call\('(?!TIME|INFO)\w+', ([^,)]+)", source(name)):
        assert re.fullmatch(r"KEYS\[\d\]|key", key), key


@pytest.mark.parametrize("name", SCRIPTS)
def test_numbers_are_written_in_full(name: str) -> None:
    """Lua writes a number of 16 digits as 1.7e+15; and what a record keeps must not be cut."""
    text = source(name)
    for value in re.findall(r"'(?:lock_until|locked_at|fencing_token)',\s*([^\s,)][^\n]*)", text):
        if not value.startswith("'"):  # a list of fields to read
            assert value.startswith(("string.format('%.0f', ", "ARGV[", "record[")), value
    assert "tostring" not in text
    assert "%d" not in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_redis_knows_it_by_the_hash_that_we_send(name: str, redis_server: RedisEndpoint) -> None:
    ours = script(name.removesuffix(".lua"))
    assert ours.text.decode() == source(IN_FRONT_OF_EACH) + source(name)
    assert ours.sha == hashlib.sha1(ours.text).hexdigest()
    with redis_server.client() as client:
        assert ask(client, "SCRIPT LOAD", ours.text) == ours.sha
