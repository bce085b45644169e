"""URLs of every kind: quick, clear, and without the password. Also: test_urls.py of the other directories."""

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shedlock_py import ConfigurationError, async_provider_from_url, provider_from_url
from tests.faults.test_hostile_input import HUGE, SETTINGS, quick, refusal
from tests.support import tiers

SCHEMES = {
    "postgresql": "postgresql+psycopg", "postgresql async": "postgresql+asyncpg", "mysql": "mysql+pymysql",
    "mysql async": "mysql+asyncmy", "redis": "redis", "redis async": "redis", "rediss": "rediss",
    "quorum": "redis+quorum", "mongodb": "mongodb", "mongodb async": "mongodb", "unix": "unix",
    "etcd": "etcd", "etcd async": "etcd", "dynamodb": "dynamodb", "dynamodb async": "dynamodb",
    "s3": "s3", "s3 async": "s3", "kubernetes": "kubernetes", "kubernetes async": "kubernetes",
}  # fmt: skip
SPECIAL = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \t\n\x00äß🐑"
SECRET = "hunter2"
ASYNC = pytest.mark.slow("the sync provider reads a URL with the same code")
KINDS = [pytest.param(kind, marks=ASYNC if kind.endswith("async") else []) for kind in SCHEMES]
CHARACTERS = SPECIAL if tiers.runs("full") else "#%&/:;?@[\\ \n\x00🐑"
"""In `make test`, those that mean something in a URL."""


def open_url(kind: str, url: str) -> object:
    return (async_provider_from_url if kind.endswith("async") else provider_from_url)(url)


def told(kind: str, url: str) -> str:
    try:
        with quick(10):
            return repr(open_url(kind, url))
    except ConfigurationError as refused:
        return "".join([repr(refused), *traceback.format_exception(refused)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_encoded", [True, False])
def test_no_message_shows_the_password(kind: str, is_encoded: bool) -> None:
    hosts = "h1,h2,h3" if kind == "quorum" else "h"
    for character in CHARACTERS:
        for password in (
            (f"{character}{SECRET}", f"{SECRET}{character}") if tiers.runs("all") else (f"{SECRET}{character}{SECRET}",)
        ):
            written = quote(password, safe="") if is_encoded else password
            for url in (
                f"{SCHEMES[kind]}://user:{written}@{hosts}/0", f"{SCHEMES[kind]}://:{written}@{hosts}",
                f"{SCHEMES[kind]}://user:{written}@{hosts}:port/0", f"{SCHEMES[kind]}://user:{written}@[::1/0",
                f"{SCHEMES[kind]}://user:{written}@{hosts}/0?nonsense=1&{written}",
            ):  # fmt: skip
                if "nonsense" in url and not is_encoded:
                    continue  # there it is no password, but an option
                assert SECRET not in told(kind, url.replace(f"&{written}", "")), url


@pytest.mark.parametrize("kind", KINDS)
def test_a_url_of_any_length_is_refused_without_its_password(kind: str) -> None:
    scheme = SCHEMES[kind]
    for url in (
        f"{scheme}://user:{SECRET * (HUGE // 7)}@h/0", f"{scheme}://{'h' * HUGE}/0", f"{scheme}://h/{'d' * HUGE}",
        f"{scheme}://{'h,' * (HUGE // 2)}h", f"{scheme}://h/0?{'a=b&' * 100_000}", f"{scheme}://{'@' * HUGE}",
        f"{scheme}://{'[' * HUGE}", f"{scheme}://{':' * HUGE}",
    ):  # fmt: skip
        with quick(20):
            assert SECRET not in refusal(lambda url=url: open_url(kind, url))  # type: ignore[misc]  # a lambda


@SETTINGS
@given(kind=st.sampled_from(list(SCHEMES)), rest=st.text(max_size=60))
def test_any_text_after_a_scheme_is_a_url_or_refused(kind: str, rest: str) -> None:
    with quick():
        refusal(lambda: open_url(kind, f"{SCHEMES[kind]}://{rest}"))


@SETTINGS
@given(text=st.text(max_size=60) | st.text("redisonglqym:/+@?%[]", max_size=40))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    with quick():
        refusal(lambda: provider_from_url(text))
