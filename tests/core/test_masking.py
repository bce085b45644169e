"""Passwords are removed from messages; other words stay."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pytest

from shedlock_py.providers.kit import Masking, is_secret_option

PASSWORDS = ["p", "to", "postgres", "hunter2", "p@ss:w/rd?", "it's 100%", 'a"b\\c', "ünsafe\tpw"]
REFUSED = 'connection to server at "10.0.0.5", port 5432 failed: FATAL: password authentication failed for user "{}"'


@pytest.mark.parametrize(
    ("password", "names", "message"),
    [
        ("postgres", ("postgres", "db"), REFUSED.format("postgres")),
        ("app", ("app",), 'FATAL: database "app" does not exist'),
        ("p", (), REFUSED.format("u")),
        ("a", (), "the host is a server"),
        ("to", (), "no route to host"),
        ("post", (), "port 5432: postgresql has posted"),
        ("5432", ("5432",), "port 5432 failed"),
        ("secret", (), "secretary"),
        ("password", (), "Access denied for user 'app'@'localhost' (using password: YES)"),
    ],
)
def test_other_words_stay(password: str, names: tuple[str, ...], message: str) -> None:
    assert Masking([password], names).masked(message) == message


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("names", [(), ("postgres", "p", "hunter2")])
def test_a_url_or_a_dsn_never_shows_it(password: str, names: tuple[str, ...]) -> None:
    masking = Masking([password], names)
    for written in (password, quote(password, safe=""), quote_plus(password), quote(password).lower()):
        for text in (
            "x://u:{}@h/db",
            "x://:{}@h: bad",
            "x://u%3A1:{}@h",
            "password={} host=h",
            "ssl_key_password='{}'",
            "PASSWORD={};HOST=h",
            "Pwd={}",
        ):
            assert masking.masked(text.format(written)) == text.format("***")


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("form", [str, repr, ascii, json.dumps, "'{}'".format, '"{}"'.format, "`{}`".format])
def test_in_quotation_marks_it_never_shows(password: str, form: object) -> None:
    assert callable(form)
    shown = Masking([password]).masked(f"invalid port number: {form(password)}")
    assert shown.strip("'\"`").endswith("***") or len(password) < 4
    assert len(password) < 4 or password not in shown


@pytest.mark.parametrize(
    ("password", "message", "shown"),
    [
        ("secret", "no such host secret, or secretary", "no such host ***, or secretary"),
        ("secret", "a%3Asecret%40host, first\\nsecret", "a%3A***%40host, first\\n***"),
        ("hunter2", "xxhunter2xx", "xx***xx"),
        ("!secret!", "at!secret!", "at***"),
        ("....", "wait....", "wait***"),
    ],
)
def test_elsewhere_it_is_found_as_a_word(password: str, message: str, shown: str) -> None:
    assert Masking([password]).masked(message) == shown


@pytest.mark.parametrize("password", ["\\" * 60, "%25" * 40, "% " * 40, "a" * 9_000, "'\"\\%@ " * 300])
def test_a_long_password_is_found_in_time(password: str) -> None:
    masking = Masking([password])
    assert masking.masked(f"password={password} host=h") == "password=*** host=h"
    assert masking.masked(f"x://u:{quote(password, safe='')}@h") == "x://u:***@h"
    hostile = password[:-1] * 3 + "!"
    assert masking.masked(hostile * 2).count("!") == 2


def test_the_longer_of_two_passwords_goes_first() -> None:
    assert Masking(["hunter2", "hunter2-long", ""]).masked("hunter2-long, hunter2") == "***, ***"


def test_without_a_password_nothing_is_masked() -> None:
    assert Masking([]).masked("a") == Masking([""]).masked("a") == "a"


@pytest.mark.parametrize(
    "name", ["password", "sslpassword", "ssl_key_password", "oauth_client_secret", "AWS_SESSION_TOKEN", "api_key"]
)
def test_options_with_secrets(name: str) -> None:
    assert is_secret_option(name)


@pytest.mark.parametrize("name", ["sslmode", "host", "sslkey", "ssl_key", "passfile", "key", "keepalives", "user"])
def test_options_without_secrets(name: str) -> None:
    assert not is_secret_option(name)


@pytest.mark.parametrize("name", ["PASSWORD", "Password", "PWD", "password", "pwd"])
@pytest.mark.parametrize("password", ["server", "p"])
def test_a_setting_in_upper_or_lower_case(name: str, password: str) -> None:
    assert Masking([password]).masked(f"{name}={password};HOST=h") == f"{name}=***;HOST=h"
