import asyncio
import logging
import re
import time
import types
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLeaderElector,
    ConfigurationError,
    Event,
    Executed,
    InMemoryLockProvider,
    LeaderElector,
    LeaseLost,
    LockRequest,
    ProviderError,
    ProviderNotConfigured,
    Settings,
    assert_locked,
    async_provider_from_url,
    attempt,
    attempt_async,
    configure,
    extend_lock,
    extend_lock_async,
    hold,
    hold_async,
    provider_from_url,
    providers,
    reset,
    scheduler_lock,
    set_active,
    try_hold_async,
)
from shedlock_py.model.request import default_holder
from shedlock_py.providers.redis import AsyncRedisLockProvider, RedisLockProvider
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider
from shedlock_py.settings.defaults import keep_alive_in_use, lock_request
from shedlock_py.settings.environment import VARIABLES
from shedlock_py.settings.lookup import configured_providers, resolve_async_provider, resolve_provider
from shedlock_py.settings.options import LockOptions
from shedlock_py.settings.urls import async_provider_from_text, opened_providers, provider_from_text
from shedlock_py.testing import RecordingListener
from tests.guides.documents import DOCS
from tests.support.interleaving import interleaved
from tests.support.logs import records_of
from tests.support.scripts import run_python


async def nothing() -> None:
    return None


class TestConfigure:
    def test_defaults_are_for_options_that_are_not_given(self) -> None:
        configure(default_lock_at_most_for="7m", default_lock_at_least_for="3s", holder="replica-1")
        request = lock_request("job")
        assert request == LockRequest("job", "7m", "3s", holder="replica-1")
        assert lock_request("job", "1m", 0) == LockRequest("job", "1m", 0, holder="replica-1")

    def test_as_a_context_manager_it_restores(self) -> None:
        first, second = InMemoryLockProvider(), InMemoryLockProvider()
        configure(provider=first)
        with configure(provider=second, default_lock_at_most_for="1m"):
            with pytest.raises(ZeroDivisionError), configure(provider=InMemoryLockProvider()):
                raise ZeroDivisionError
            with hold("job"):
                assert second.record("job")
            assert lock_request("job").lock_at_most_for == timedelta(minutes=1)
        with hold("other"):
            assert first.record("other")
        assert lock_request("job").lock_at_most_for == timedelta(minutes=10)

    def test_a_later_call_changes_only_what_it_names(self) -> None:
        provider, heard = InMemoryLockProvider(), RecordingListener()
        first = {"default_lock_at_most_for": "7m", "default_lock_at_least_for": "3s", "holder": "replica-1"}
        configure(provider, listeners=[heard], keep_alive=True, **first)  # type: ignore[arg-type]  # a dict
        configure()
        configure(holder="replica-2")
        assert lock_request("job") == LockRequest("job", "7m", "3s", holder="replica-2")
        assert keep_alive_in_use(None)
        with configure(keep_alive=False, default_lock_at_most_for=None):
            assert not keep_alive_in_use(None)
            attempt("job", lambda: None, lock_at_most_for="1m")
        assert heard.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]
        assert provider.record("job")
        configure(holder=None)
        assert lock_request("job").holder == default_holder()
        assert lock_request("job").lock_at_most_for == timedelta(minutes=7)

    def test_a_new_store_replaces_that_for_async_code(self) -> None:
        """Otherwise one lock would be in two stores: functions would use the new store, coroutines the old."""
        new, former, for_async = InMemoryLockProvider(), InMemoryLockProvider(), AsyncInMemoryLockProvider()
        configure(former, async_provider=for_async)
        configure(holder="replica-1")
        assert resolve_async_provider(None, "job") is for_async
        configure(new)
        assert getattr(resolve_async_provider(None, "job"), "sync_provider", None) is new
        configure(async_provider=for_async)
        assert resolve_provider(None, "job") is new
        assert resolve_async_provider(None, "job") is for_async

    def test_it_takes_an_async_provider(self, tmp_path: Path) -> None:
        configure(InMemoryLockProvider(), async_provider=AsyncInMemoryLockProvider())
        provider, url = AsyncInMemoryLockProvider(), f"sqlite+aiosqlite:///{tmp_path}/locks.db"
        for given, expected in ((provider, provider), (url, provider_from_text(url))):
            configure(given)
            configure(holder="replica-1")
            assert configured_providers() == (expected,)
            assert resolve_async_provider(None, "job") is expected
        configure(async_provider=provider)
        assert configured_providers() == (provider,)

    def test_reset_restores_the_defaults_of_a_fresh_process(self) -> None:
        configure(InMemoryLockProvider(), default_lock_at_most_for="1m", keep_alive=True, holder="replica-1")
        with reset():
            assert lock_request("job") == LockRequest("job", "10m")
            assert not keep_alive_in_use(None)
            with pytest.raises(ProviderNotConfigured):
                hold("job").__enter__()
        assert lock_request("job").holder == "replica-1"
        reset()
        assert lock_request("job") == LockRequest("job", "10m")

    def test_the_store_is_the_first_argument_and_the_only_positional_one(self) -> None:
        provider = InMemoryLockProvider()
        configure(provider)
        assert resolve_provider(None, "job") is provider
        with pytest.raises(TypeError, match="positional"):
            configure(provider, AsyncInMemoryLockProvider())  # type: ignore[call-arg]  # on purpose

    @pytest.mark.parametrize("name", ["provider", "async_provider"])
    def test_none_as_of_a_variable_that_is_not_set(self, name: str) -> None:
        provider = InMemoryLockProvider()
        configure(provider)
        with pytest.raises(ConfigurationError, match=f"^{name} is None. Is the environment variable of its URL set"):
            configure(**{name: None})  # type: ignore[arg-type]  # on purpose
        assert resolve_provider(None, "job") is provider

    def test_create_schema_creates_the_tables(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/locks.db"
        configure(url, create_schema=True)
        assert isinstance(attempt("job", nothing_sync), Executed)
        configure(create_schema=True)  # in the configured store; a repetition changes nothing
        set_active(False)
        configure(f"sqlite:///{tmp_path}/no/such/directory/locks.db", create_schema=True)  # the call locks nothing

    def test_a_relative_path_in_another_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """configure() means the file in the current directory; a guard keeps the file of its first call."""
        url, in_guard = "sqlite:///relative.db", "sqlite:///guards.db"
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)
            configure(url, create_schema=True)
            with Settings.from_env({"SHEDLOCK_STORE": url}).apply(), hold("job"):
                assert resolve_provider(None, "job") is provider_from_text(url)
            assert (tmp_path / name / "relative.db").exists()
            if name == "first":
                configure(in_guard, create_schema=True)
            reset()
            assert isinstance(attempt("job", nothing_sync, provider=in_guard), Executed)
        assert not (tmp_path / "second" / "guards.db").exists()

    def test_tables_that_cannot_be_created_change_nothing(self, tmp_path: Path) -> None:
        provider = InMemoryLockProvider()
        configure(provider)
        with pytest.raises(ProviderError):
            configure(f"sqlite:///{tmp_path}/no/such/directory/locks.db", create_schema=True)
        assert resolve_provider(None, "job") is provider

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"create_schema": True}, r"create_schema=True needs the store: configure\('postgresql:"),
            ({"create_schema": "no"}, "create_schema must be True or False, not 'no'"),
            (
                {"async_provider": AsyncInMemoryLockProvider(), "create_schema": True},
                r"await provider.create_schema\(\) at start-up",
            ),
        ],
    )
    def test_create_schema_that_cannot_work(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            configure(**settings)

    def test_decorators_look_the_provider_up_when_called(self) -> None:
        @scheduler_lock("job", "1m")
        def job() -> str:
            return "ran"

        with pytest.raises(ProviderNotConfigured):
            job()
        provider = InMemoryLockProvider()
        configure(provider=provider)
        assert job() == "ran"
        assert provider.record("job")

    @pytest.mark.parametrize(
        ("listeners", "words"),
        [
            ([RecordingListener], r"RecordingListener is a class: make one, as in RecordingListener\(\)"),
            ([nothing], "not an ordinary function"),
            (["print"], "'print' is not an ordinary function"),
            (print, "is not a list"),
        ],
    )
    def test_listeners_that_cannot_listen(self, listeners: Any, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            configure(listeners=listeners)

    def test_listeners_come_besides_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "shedlock_py")
        recorded = RecordingListener()
        configure(provider=InMemoryLockProvider(), listeners=[recorded])
        attempt("job", lambda: None)
        assert len(recorded.events) == len(records_of(caplog)) == 3
        Settings(provider=InMemoryLockProvider(), listeners=(recorded,)).apply()  # instead of the log
        attempt("job", lambda: None, lock_at_most_for="1m")
        assert (len(recorded.events), len(records_of(caplog))) == (6, 3)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"default_lock_at_most_for": "10"}, "default_lock_at_most_for='10'"),
            ({"default_lock_at_most_for": 0}, "default_lock_at_most_for=0 is zero"),
            ({"default_lock_at_least_for": -1}, "default_lock_at_least_for=-1 is negative"),
            ({"default_lock_at_least_for": "11m"}, "longer than"),
            ({"holder": ""}, "holder"),
            (
                {"provider": AsyncInMemoryLockProvider(), "async_provider": AsyncInMemoryLockProvider()},
                "AsyncInMemoryLockProvider is an async provider, as is async_provider: give one of them",
            ),
            ({"async_provider": InMemoryLockProvider()}, r"not an async provider: configure\(provider="),
            ({"provider": object()}, "object is not a lock provider"),
            ({"provider": "redid://host"}, "unknown scheme 'redid'"),
        ],
    )
    def test_what_cannot_work_is_refused_and_changes_nothing(self, settings: dict[str, Any], words: str) -> None:
        configure(default_lock_at_most_for="7m")
        with pytest.raises(ConfigurationError, match=words):
            configure(**settings)
        assert lock_request("job").lock_at_most_for == timedelta(minutes=7)

    def test_no_lock_at_most_for(self) -> None:
        configure(provider=InMemoryLockProvider(), default_lock_at_most_for=None)

        @scheduler_lock("nightly")
        def nightly() -> None: ...

        for call in (nightly, lambda: attempt("nightly", nothing_sync)):
            with pytest.raises(ConfigurationError, match="nightly") as caught:
                call()
            assert "configure(default_lock_at_most_for=" in str(caught.value)


def nothing_sync() -> None:
    return None


class TestProviderNotConfigured:
    @pytest.fixture(autouse=True)
    def _no_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SHEDLOCK_STORE", raising=False)

    async def messages(self) -> set[str]:
        """Return the messages for a sync and for an async function."""
        with pytest.raises(ProviderNotConfigured) as caught:
            attempt("nightly", nothing_sync)
        with pytest.raises(ProviderNotConfigured) as caught_async:
            await attempt_async("nightly", nothing)
        return {str(caught.value), str(caught_async.value)}

    @pytest.mark.anyio
    async def test_configure_was_not_called(self) -> None:
        assert await self.messages() == {
            "no provider for lock 'nightly': configure() was not called in this process: call "
            "configure('postgresql://user@host/db') at start-up, or pass provider=…"
        }

    @pytest.mark.anyio
    async def test_configure_was_called_without_a_store(self) -> None:
        configure(holder="replica-1")
        (message,) = await self.messages()
        assert "'nightly': configure() was called without a store in this process: call configure('postg" in message

    @pytest.mark.anyio
    async def test_the_variable_is_set_but_nothing_has_read_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHEDLOCK_STORE", "postgresql://me:secret@host/db")
        assert await self.messages() == {
            "no provider for lock 'nightly': SHEDLOCK_STORE is set, but nothing has read it: call "
            "Settings.from_env().apply() at start-up"
        }

    def test_a_function_and_only_an_async_provider(self) -> None:
        configure(async_provider=AsyncInMemoryLockProvider())
        with pytest.raises(ConfigurationError, match="only an async provider") as caught:
            attempt("nightly", nothing_sync)
        for words in ("'nightly'", "async def", "configure('postgresql://…', async_provider=…)"):
            assert words in str(caught.value)
        with pytest.raises(ConfigurationError, match="only an async provider"):
            attempt("nightly", nothing_sync, provider=AsyncInMemoryLockProvider())  # type: ignore[arg-type]  # on purpose

    @pytest.mark.parametrize("resolve", [resolve_provider, resolve_async_provider])
    def test_another_thread_that_configures_meanwhile(self, resolve: Callable[[object, str], object]) -> None:
        """At each moment, all settings are old, or all are new."""
        number, is_over, refused = 0, False, 0
        found: list[object] = []
        while not is_over:
            configure(provider=InMemoryLockProvider())
            try:
                is_over = not interleaved(lambda: found.append(resolve(None, "job")), reset, number)
                assert None not in found, f"instruction {number}"
            except ProviderNotConfigured:
                refused += 1
            number += 1
        assert number > refused > 0

    @pytest.mark.anyio
    async def test_async_tasks_prefer_the_async_provider(self) -> None:
        sync, asynchronous = InMemoryLockProvider(), AsyncInMemoryLockProvider()
        configure(provider=sync)
        assert isinstance(await attempt_async("in a thread", nothing), Executed)
        configure(provider=sync, async_provider=asynchronous)
        assert isinstance(await attempt_async("job", nothing), Executed)
        assert [record.name for record in sync.records()] == ["in a thread"]
        assert [record.name for record in await asynchronous.records()] == ["job"]


def test_each_setting_is_a_parameter_has_a_variable_and_is_in_the_docs() -> None:
    parameters = list(signature(configure).parameters)
    names = [field.name for field in fields(Settings)]
    assert parameters.pop() == "create_schema"  # it happens once and is not kept
    assert parameters == names, "config.py: Settings and configure() must have the same fields, in one order"
    # SHEDLOCK_STORE may name an async provider too; listeners are objects.
    without = set(names) - {"async_provider", "listeners"} - {field for field, _ in VARIABLES.values()}
    assert not without, f"config.py: no variable in VARIABLES for {', '.join(without)}"
    guards, django = (DOCS / "guards.md").read_text(), (DOCS / "reference/django.md").read_text()
    for variable in VARIABLES:
        assert re.search(rf"^\| `{variable}` \|", guards, re.MULTILINE), f"docs/guards.md has no row for {variable}"
        assert f"``{variable}``" in str(Settings.from_env.__doc__), f"the docstring of from_env lacks {variable}"
    for name in names:
        assert f":param {name}:" in str(configure.__doc__), f"the docstring of configure lacks {name}"
        if "provider" not in name:
            assert f"`{name.upper()}`" in django, f"docs/reference/django.md does not name {name.upper()}"


SHARED = InMemoryLockProvider()
SHARED_ASYNC = AsyncInMemoryLockProvider()


class TestFromEnv:
    def test_nothing_set_is_what_configure_does_by_default(self) -> None:
        settings = Settings.from_env({})
        assert settings == Settings()
        with settings.apply():
            assert lock_request("job") == LockRequest("job", "10m")

    def test_every_variable_takes_effect_until_the_block_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = {
            "SHEDLOCK_STORE": f"{__name__}:SHARED",
            "SHEDLOCK_LOCK_AT_MOST_FOR": "7m",
            "SHEDLOCK_LOCK_AT_LEAST_FOR": "3s",
            "SHEDLOCK_KEEP_ALIVE": "Yes",
            "SHEDLOCK_HOLDER": "replica-1",
        }
        untried = set(VARIABLES) - set(values)
        assert not untried, f"give {', '.join(untried)} a value in this test"
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        with Settings.from_env().apply():
            assert lock_request("job") == LockRequest("job", "7m", "3s", holder="replica-1")
            assert keep_alive_in_use(None)
            assert isinstance(attempt("from-env", lambda: None), Executed)
        record = SHARED.record("from-env")
        assert record is not None
        assert record.holder == "replica-1"
        assert not keep_alive_in_use(None)  # restored

    def test_keep_alive_with_a_limit(self) -> None:
        with Settings.from_env({"SHEDLOCK_KEEP_ALIVE": "2h"}).apply():
            assert keep_alive_in_use(None) == timedelta(hours=2)
            assert keep_alive_in_use(True) is True
            configure(keep_alive="3h")
            assert keep_alive_in_use(None) == timedelta(hours=3)
            assert keep_alive_in_use(False) is False
        assert keep_alive_in_use(timedelta(hours=1)) == timedelta(hours=1)

    def test_empty_is_absent(self) -> None:
        assert Settings.from_env(dict.fromkeys(VARIABLES, " ")) == Settings.from_env({})

    def test_an_async_store(self) -> None:
        with Settings.from_env({"SHEDLOCK_STORE": f"{__name__}:SHARED_ASYNC"}).apply():
            assert configured_providers() == (SHARED_ASYNC,)
            assert resolve_async_provider(None, "job") is SHARED_ASYNC

    @pytest.mark.parametrize("ending", ["\n", "\r\n", " ", "\t"])
    def test_white_space_as_of_a_secret_made_with_echo(self, tmp_path: Path, ending: str) -> None:
        url = f"sqlite:///{tmp_path}/locks.db"
        settings = Settings.from_env({"SHEDLOCK_STORE": url + ending})
        assert settings.provider is provider_from_text(url + ending) is provider_from_text(url)

    def test_a_url_with_an_async_driver(self, tmp_path: Path) -> None:
        with Settings.from_env({"SHEDLOCK_STORE": f"sqlite+aiosqlite:///{tmp_path}/locks.db"}).apply():
            assert len(configured_providers()) == 1
            assert isinstance(resolve_async_provider(None, "job"), AsyncSqlAlchemyLockProvider)

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("STORE", "redid://me:secret@host", "SHEDLOCK_STORE: store URL: unknown scheme 'redid'"),
            ("STORE", "me:secret@host/db", "SHEDLOCK_STORE: the given text is neither a URL"),
            ("STORE", "locks.db", "SHEDLOCK_STORE: 'locks.db' is neither a URL (\"sqlite:///locks.db\")"),
            ("STORE", "nosuchmodule:provider", "SHEDLOCK_STORE: cannot import 'nosuchmodule:provider'"),
            ("LOCK_AT_MOST_FOR", "10", "SHEDLOCK_LOCK_AT_MOST_FOR='10' is not a duration"),
            ("LOCK_AT_MOST_FOR", "0s", "SHEDLOCK_LOCK_AT_MOST_FOR='0s' is zero"),
            ("LOCK_AT_LEAST_FOR", "-1s", "SHEDLOCK_LOCK_AT_LEAST_FOR='-1s' is"),
            ("LOCK_AT_LEAST_FOR", "1h", "longer than lock_at_most_for"),
            ("KEEP_ALIVE", "maybe", "SHEDLOCK_KEEP_ALIVE='maybe' is neither true nor false, nor a duration"),
            ("HOLDER", "x" * 500, "holder"),
        ],
    )
    def test_values_that_cannot_work_name_their_variable(self, name: str, value: str, words: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            Settings.from_env({f"SHEDLOCK_{name}": value}).apply()
        assert words in str(caught.value)
        assert "secret" not in str(caught.value)

    @pytest.mark.not_quick("starts a Python")
    def test_a_store_in_a_package_that_configures_itself_when_it_is_imported(self, tmp_path: Path) -> None:
        """``shedlock`` imports the package while the command line and the application share the variable."""
        package = tmp_path / "application"
        package.mkdir()
        (package / "__init__.py").write_text("from shedlock_py import Settings\nSettings.from_env().apply()\n")
        (package / "locks.py").write_text(
            "from shedlock_py import InMemoryLockProvider\ndef locks():\n    return InMemoryLockProvider()\n"
        )
        script = (
            "import os; os.environ['SHEDLOCK_STORE'] = 'application.locks:locks'\n"
            "from shedlock_py.settings.lookup import configured_providers\n"
            "from shedlock_py.settings.urls import provider_from_text\n"
            "provider = provider_from_text('application.locks:locks')\n"
            "print(configured_providers() == (provider,))\n"
        )
        done = run_python("-c", script, cwd=tmp_path, timeout=30)
        assert (done.stdout, done.stderr) == ("True\n", "")

    def test_a_store_in_a_module_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "fails_at_import.py").write_text("import os; os.environ['NO_SUCH_VARIABLE']\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ConfigurationError) as caught:
            Settings.from_env({"SHEDLOCK_STORE": "fails_at_import:provider"})
        words = "SHEDLOCK_STORE: cannot import 'fails_at_import:provider': KeyError('NO_SUCH_VARIABLE')"
        assert str(caught.value) == words


class TestUrls:
    @pytest.mark.parametrize("prefix", ["", "Async"])
    @pytest.mark.parametrize(
        ("kind", "url"),
        [
            ("SqlAlchemy", "postgresql://h/d"),
            ("Redis", "redis://h"),
            ("RedisQuorum", "redis+quorum://h,i,j"),
            ("Mongo", "mongodb://h"),
        ],
    )
    def test_an_unknown_option_is_an_error(self, prefix: str, kind: str, url: str) -> None:
        with pytest.raises(TypeError, match="tabel_name"):
            getattr(providers, f"{prefix}{kind}LockProvider")(url, tabel_name="locks")

    @pytest.mark.parametrize("from_url", [provider_from_url, async_provider_from_url])
    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("redid://me:secret@host/0", "unknown scheme 'redid'"),
            ("host/db?password=secret", "not a URL, such as 'sqlite:///locks.db'; supported:"),
            ("", "the store URL is empty"),
            ("://secret", "not a URL"),
        ],
    )
    def test_an_unknown_url_is_refused_and_its_password_is_not_shown(self, from_url: Any, url: str, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words) as caught:
            from_url(url)
        assert "postgresql://" in str(caught.value)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("password", ["p[w", "p]w", "p#w", "p?w", "pw:8"])
    def test_passwords_that_look_like_something_else(self, password: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            provider_from_url(f"redid://me:{password}@host/db")
        assert password not in str(caught.value)

    def test_control_characters_inside(self) -> None:
        for url in ("redis://me:secret@ho\nst", "sqlite:///lo\x00cks.db", "sqlite:///\x7f.db", "sqlite:///a\u2028.db"):
            for refused in (
                lambda url=url: provider_from_url(url),
                lambda url=url: configure(url),
                lambda url=url: scheduler_lock("job", provider=url),
                lambda url=url: Settings.from_env({"SHEDLOCK_STORE": url}),
            ):
                with pytest.raises(ConfigurationError, match=r"a control character, '.*', at position \d") as caught:
                    refused()
                assert "secret" not in str(caught.value)

    def test_a_home_directory(self) -> None:
        for url in ("sqlite:///~/locks.db", "sqlite:///~ann/locks.db", "sqlite:///file:~/locks.db?uri=true"):
            with pytest.raises(ConfigurationError, match=r"does not expand '~'.* sqlite:////"):
                provider_from_url(url)
        provider_from_url("sqlite:///~locks.db")  # a file of that name

    @pytest.mark.parametrize("from_url", [provider_from_url, async_provider_from_url])
    @pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
    def test_several_hosts_as_libpq_writes_them(self, scheme: str, from_url: Any) -> None:
        for place in ("db1:5432,db2:5432", "me:secret@db1:5432,db2", "me:s:e,c:ret@db1:,db2:5432"):
            with pytest.raises(ConfigurationError) as caught:
                from_url(f"{scheme}://{place}/db?target_session_attrs=read-write")
            assert str(caught.value).endswith("postgresql://user:password@/database?host=db1:5432&host=db2:5432")
        from_url(f"{scheme}://user:password@/database?host=db1:5432&host=db2:5432")

    def test_valkey_is_redis(self) -> None:
        places = {
            repr(from_url(url))
            for url in ("valkey://:secret@host:7000/3", "redis://:secret@host:7000/3")
            for from_url in (provider_from_url, RedisLockProvider)
        }
        assert len(places) == 1
        assert repr(provider_from_url("valkeys://host")) == repr(provider_from_url("rediss://host"))
        assert isinstance(async_provider_from_url("valkeys://host"), AsyncRedisLockProvider)


class TestProviderArguments:
    """A URL may replace a provider anywhere. All users of a URL share one provider."""

    def test_in_guards(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/locks.db"
        configure(url, create_schema=True)
        reset()
        provider: Any = provider_from_text(url)

        @scheduler_lock("job", provider=f" {url}\n")
        def job() -> bool:
            # the current code is inside the lock
            assert isinstance(attempt("job", nothing_sync, provider=url), Executed)
            return bool(provider.record("job").is_held)

        assert job()
        with hold("block", provider=url) as lease:
            assert lease
            with hold("block", provider=url) as inner:
                assert inner is lease
        assert isinstance(attempt("job", job, provider=url), Executed)

    @pytest.mark.anyio
    async def test_in_async_guards(self, tmp_path: Path) -> None:
        """As with configure(): guards use worker threads, unless the URL names an async driver."""
        url = f"sqlite:///{tmp_path}/locks.db"
        configure(url, create_schema=True)
        reset()

        @scheduler_lock("job", provider=url)
        async def job() -> bool:
            async with hold_async("job", provider=url) as lease:
                return lease.is_trusted()

        assert await job()
        assert getattr(resolve_async_provider(url, "job"), "sync_provider", None) is provider_from_text(url)
        with_driver = url.replace("sqlite", "sqlite+aiosqlite")
        assert isinstance(await attempt_async("job", job, provider=with_driver), Executed)
        with pytest.raises(
            ConfigurationError, match="guards an ordinary function, but there is only an async provider"
        ):
            attempt("job", nothing_sync, provider=with_driver)
        await provider_from_text(with_driver).close()

    def test_in_electors(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/locks.db"
        configure(f"{url}\n", create_schema=True)
        with LeaderElector(f"{url} ", "feed") as elector:
            assert elector.wait_until_leader("10s")
            assert resolve_provider(None, "feed").record("feed")
        assert AsyncLeaderElector(url, "feed")
        with pytest.raises(ConfigurationError, match="is an async provider, which LeaderElector cannot await"):
            LeaderElector("sqlite+aiosqlite:///locks.db", "feed")

    @pytest.mark.parametrize("elector", [LeaderElector, AsyncLeaderElector])
    def test_none_for_an_elector(self, elector: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"the provider is None\. Is the environment variable"):
            elector(None, "feed")

    def test_in_settings(self) -> None:
        Settings(provider="memory://?history=3").apply()
        assert resolve_provider(None, "job") is provider_from_text("memory://?history=3 ")

    def test_a_provider_of_the_application_by_its_name(self) -> None:
        assert isinstance(attempt("by-name", nothing_sync, provider=f"{__name__}:SHARED"), Executed)
        assert SHARED.record("by-name")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("redid://me:secret@host", "unknown scheme 'redid'"),
            ("locks.db", "'locks.db' is neither a URL"),
            ("me:secret@host/db", "the given text is neither a URL"),
            (" ", "the store URL is empty"),
        ],
    )
    def test_texts_that_name_no_provider_are_refused_when_decorating(self, text: str, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words) as caught:
            scheduler_lock("job", provider=text)
        assert "secret" not in str(caught.value)

    def test_a_url_is_opened_at_the_first_call_and_not_shown(self) -> None:
        options = LockOptions.parse("hold", {"provider": "mysql://me:secret@host/db"})
        assert "secret" not in repr(options)
        assert "secret" not in repr(Settings(provider="mysql://me:secret@host/db"))
        set_active(False)
        assert isinstance(attempt("job", nothing_sync, provider="postgresql+nosuch://host"), Executed)
        assert opened_providers("postgresql+nosuch://host") == ()

    def test_what_is_no_provider(self) -> None:
        with pytest.raises(ConfigurationError, match="is not a lock provider"):
            hold("job", provider=types.SimpleNamespace(execute=print))


def test_settings_with_listeners_that_cannot_be_called() -> None:
    async def listen(event: Event) -> None:
        raise NotImplementedError

    settings = Settings()
    for listeners in ((listen,), print):
        with pytest.raises(ConfigurationError, match="listener"):
            replace(settings, listeners=listeners).apply()  # type: ignore[arg-type]  # on purpose


class TestActive:
    def test_switched_off_everything_runs_and_one_warning_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        provider = InMemoryLockProvider()
        configure(provider=provider)
        set_active(False)
        for _ in range(3):
            with hold("job") as lease:
                assert lease is not None
                assert isinstance(attempt("job", nothing_sync), Executed)
        (warning,) = records_of(caplog)
        assert warning.levelno == logging.WARNING
        assert "SWITCHED OFF" in warning.getMessage()
        assert provider.records() == []

    @pytest.mark.anyio
    async def test_async_code_waits_for_nothing(self) -> None:
        """It waits neither for a thread, which a test's event loop may not know, nor for an iteration of the loop."""
        set_active(False)
        iterations: list[str] = []
        asyncio.get_running_loop().call_soon(iterations.append, "one")
        async with hold_async("job") as lease:
            assert lease is not None
            assert await extend_lock_async("1h") is lease
            assert iterations == []
            with pytest.raises(ConfigurationError, match="await the async twin"):
                extend_lock("1h")

    def test_a_lease_that_locks_nothing_does_not_end(self, caplog: pytest.LogCaptureFixture) -> None:
        """A job with keep-alive has a short lease that nothing extends."""
        set_active(False)
        lost: list[LeaseLost] = []
        with hold("job", lock_at_most_for="3ms", keep_alive=True, on_lost=lost.append) as lease:
            assert lease is not None
            time.sleep(0.1)
            assert_locked()
            assert extend_lock("5ms") is lease
            time.sleep(0.1)
            assert lease.is_trusted()
        assert not lost
        assert len(records_of(caplog)) == 1, "that locking is switched off"

    @pytest.mark.anyio
    async def test_nor_is_its_async_task_cancelled(self) -> None:
        set_active(False)
        async with hold_async("job", lock_at_most_for="3ms", keep_alive=True, on_lost="cancel") as lease:
            assert lease is not None
            await asyncio.sleep(0.1)

    def test_the_environment_may_change_at_any_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        provider = InMemoryLockProvider()
        configure(provider=provider)

        @scheduler_lock("job")
        def is_locked() -> bool:
            record = provider.record("job")
            return record is not None and record.is_held

        found = [is_locked()]
        for value in ("0", "1", "false", "", "No ", "OFF", "n", "of"):
            monkeypatch.setenv("SHEDLOCK_ACTIVE", value)
            found.append(is_locked())
        monkeypatch.delenv("SHEDLOCK_ACTIVE")
        found.append(is_locked())
        assert found == [True, False, True, False, True, False, False, False, True, True]

    def test_switched_off_and_on_in_the_middle_of_a_task(self) -> None:
        provider = InMemoryLockProvider()
        configure(provider=provider)
        with hold("job"):
            set_active(False)
            assert isinstance(attempt("other", nothing_sync), Executed)
        set_active(True)
        assert isinstance(attempt("job", nothing_sync), Executed)
        assert [record.is_held for record in provider.records()] == [False]


class TestOneStore:
    """All spellings of a store share one provider in a process."""

    async def test_a_lease_on_the_async_provider_counts_for_the_url(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/locks.db"
        configure(url, async_provider=url, create_schema=True)
        async with hold_async("job"), try_hold_async("job", provider=url) as lease:
            assert lease is not None
        async with hold_async("job", provider=url), try_hold_async("job") as lease:
            assert lease is not None

    @pytest.mark.parametrize(
        ("alias", "url"),
        [
            ("valkey://h/0", "redis://h/0"),
            ("VALKEYS://h/0", "rediss://h/0"),
            ("postgres://u@h/d", "postgresql://u@h/d"),
            ("postgres+psycopg://u@h/d\n", "postgresql+psycopg://u@h/d"),
        ],
    )
    def test_an_alias_of_a_scheme(self, alias: str, url: str) -> None:
        assert provider_from_text(alias) is provider_from_text(url)
        assert async_provider_from_text(alias) is async_provider_from_text(url)
        assert opened_providers(alias) == opened_providers(url) != ()
        assert LockOptions.parse("hold", {"provider": alias}).provider == url

    def test_a_refused_configure_moves_no_guard(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        url = "sqlite:///moved.db"
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / "one")
        configure(url, async_provider=url, create_schema=True)
        former = opened_providers(url)
        monkeypatch.chdir(tmp_path / "two")
        for refused in (
            lambda: configure(url, keep_alive="no"),
            lambda: configure(url, default_lock_at_least_for="1h"),
            lambda: configure(url, async_provider=InMemoryLockProvider()),  # type: ignore[arg-type]  # on purpose
            lambda: Settings.from_env({"SHEDLOCK_STORE": url, "SHEDLOCK_KEEP_ALIVE": "maybe"}),
        ):
            with pytest.raises(ConfigurationError):
                refused()
            assert opened_providers(url) == former
        configure(url, async_provider=url)
        assert not set(opened_providers(url)) & set(former)
        moved = opened_providers(url)
        configure(url, async_provider=url)
        assert opened_providers(url) == moved

    @pytest.mark.parametrize("kind", [InMemoryLockProvider, AsyncInMemoryLockProvider])
    def test_another_thread_never_finds_the_process_without_a_provider(self, kind: Any) -> None:
        former, seen = InMemoryLockProvider(), list[object]()

        def listeners() -> Any:
            seen.append(configured_providers())
            yield print

        configure(former)
        store = kind()
        with configure(store, listeners=listeners()):
            assert configured_providers() == (store,)
        assert seen == [(former,)]
        assert configured_providers() == (former,)
