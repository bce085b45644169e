"""URLs of every kind: errors are quick and clear, and hide the password. See also test_urls.py in other directories."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LeaderElector,
    LockRequest,
    async_provider_from_url,
    attempt,
    configure,
    hold,
    provider_from_url,
    release_on_sigterm,
    scheduler_lock,
)
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.model.stores import STORES
from tests.faults.test_hostile_input import HUGE, SETTINGS, quick, refusal
from tests.support import tiers

SCHEMES = {
    scheme + kind: scheme
    for scheme in (*(scheme for scheme in STORES if scheme not in ("memory", "sqlite")), "rediss", "unix")
    for kind in ("", " async")
}
SPECIAL = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \t\n\x00äß🐑"
SECRET = "hunter2"
ASYNC = pytest.mark.slow("the sync provider reads a URL with the same code")
KINDS = [pytest.param(kind, marks=ASYNC if kind.endswith("async") else []) for kind in SCHEMES]
CHARACTERS = SPECIAL if tiers.runs("full") else "#%&/:;?@[\\ \n\x00🐑"
"""`make test` uses only characters with a meaning in URLs."""


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
    hosts = "h1,h2,h3" if "quorum" in kind else "h"
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
                    continue  # here it is an option, not a password
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


URL = f"postgresql://me:{SECRET}@h/db"
LONG = f"{URL}{'x' * 80}"
MISPLACED: dict[str, Callable[[], object]] = {
    "lock name of hold": lambda: hold(URL),
    "lock name of attempt": lambda: attempt(LONG, print),
    "lock name of scheduler_lock": lambda: scheduler_lock(URL),
    "lock name of scheduler_lock, long": lambda: scheduler_lock(LONG),
    "lock name, bytes": lambda: LockRequest(URL.encode(), "1m"),  # type: ignore[arg-type]
    "election": lambda: LeaderElector(InMemoryLockProvider(), URL),
    "takeover": lambda: LeaderElector(InMemoryLockProvider(), "a", takeover=URL),  # type: ignore[arg-type]
    "callback": lambda: LeaderElector(InMemoryLockProvider(), "a", on_new_leader=URL),  # type: ignore[arg-type]
    "bytes": lambda: provider_from_url(URL.encode()),  # type: ignore[arg-type]
    "list": lambda: provider_from_url([URL]),  # type: ignore[arg-type]
    "keep_alive": lambda: hold("a", keep_alive=URL),
    "on_lost": lambda: hold("a", on_lost=URL),  # type: ignore[arg-type]
    "lock_at_most_for": lambda: hold("a", lock_at_most_for=URL),
    "create_schema": lambda: configure("memory://", create_schema=URL),  # type: ignore[arg-type]
    "holder": lambda: configure(holder=LONG * 3),
    "holder with a line end": lambda: configure(holder=f"{URL}\n"),
    "listeners": lambda: configure(listeners=[URL]),  # type: ignore[list-item]
    "release_on_sigterm": lambda: release_on_sigterm(URL),
    "executor": lambda: ShedLockExecutor(URL),
    "executors": lambda: ShedLockExecutor([URL]),
    "on_provider_error": lambda: ShedLockExecutor(on_provider_error=URL),  # type: ignore[arg-type]
    "lock_all": lambda: ShedLockExecutor(lock_all=URL),
    "locks": lambda: ShedLockExecutor(locks={"a": {"name": "a", "provider": URL}}),
    "locks, a list": lambda: ShedLockExecutor(locks={"a": [URL]}),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("place", MISPLACED)
def test_a_url_in_the_wrong_place_is_not_quoted(place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MISPLACED[place]()
    errors = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert SECRET not in "".join(map(str, errors))


def test_a_url_as_an_executor_names_the_argument_for_it() -> None:
    with pytest.raises(ConfigurationError, match=r"ShedLockExecutor\(provider=…\)"):
        ShedLockExecutor(URL)


def test_a_lock_name_that_is_filled_with_a_url() -> None:
    @scheduler_lock("sync-{url}", provider=InMemoryLockProvider())
    def sync(url: str) -> None: ...

    with pytest.raises(ConfigurationError, match="lock name must not be a URL with a user") as caught:
        sync(URL)
    assert SECRET not in str(caught.value)
