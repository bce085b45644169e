"""The provider of a database of ``DATABASES``. It follows the settings at each call."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from django.conf import settings
from sqlalchemy import URL, NullPool, create_engine, event

from shedlock_py.errors import ConfigurationError
from shedlock_py.integrations.django.conf import Conf, read_settings
from shedlock_py.integrations.django.databases import connection_of, store_url
from shedlock_py.model.durations import Duration
from shedlock_py.model.lease import Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.provider import LockProvider
from shedlock_py.providers.kit import ProgramProvider
from shedlock_py.providers.memory import InMemoryLockProvider
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider


class DatabaseLockProvider(LockProvider):
    """A :class:`SqlAlchemyLockProvider` for a database of Django, with a few connections of its own.

    It has all methods of that class, and follows the settings. While Django's test runner uses a test database, the
    locks are in the test database, too. Then no connection stays open, because that would keep the runner from dropping
    the database. Locks of a test database in memory are private to this process.

    :param conf: the settings. Default: ``settings.SHEDLOCK``.
    """

    problem: ConfigurationError | None = None
    """The error in the settings, if no lock can be taken."""

    def __init__(self, conf: Conf | None = None) -> None:
        self._conf = conf
        self._names = {alias: database.get("NAME") for alias, database in settings.DATABASES.items()}
        """Names of the real databases, by alias. The test runner replaces the names in the settings."""
        self._providers: dict[object, ProgramProvider] = {}

    def __repr__(self) -> str:
        try:
            return repr(self.current())
        except Exception as error:
            return f"<{type(self).__name__}: {error}>"

    def current(self) -> ProgramProvider:
        """Return the provider for the present settings. This does not connect.

        :raises ConfigurationError: the settings are wrong, or the database cannot have locks.
        """
        if self.problem is not None:
            raise ConfigurationError(str(self.problem)) from self.problem
        conf = self._conf or read_settings()
        connection = connection_of(conf.database)
        values = connection.settings_dict
        is_test = values["NAME"] != self._names.get(conf.database)
        # Connection parameters are left out, because a backend may make a new password for every connection.
        key = (conf.database, is_test, *(repr(values.get(name)) for name in _WHERE))
        found = self._providers.get(key)
        if found is None:
            url, options = store_url(connection), dict(conf.options)
            made = _for_tests(url, options) if is_test else _with_current_credentials(url, conf.database, options)
            found = self._providers.setdefault(key, made)  # another thread may have made a provider meanwhile
            for other in [each for each in list(self._providers) if each != key]:
                with suppress(KeyError):
                    self._providers.pop(other).close()
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.current(), name)

    def acquire(self, request: LockRequest) -> Lease | None:
        return self.current().acquire(request)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return self.current().extend(lease, lock_at_most_for)

    def release(self, lease: Lease) -> bool:
        return self.current().release(lease)

    def record(self, name: str) -> LockRecord | None:
        return self.current().record(name)

    def records(self, prefix: str = "") -> list[LockRecord]:
        return self.current().records(prefix)

    def force_release(self, name: str, expected: LockRecord | None = None) -> bool:
        return self.current().force_release(name, expected)

    def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
        return self.current().take_over(request, expected)

    def prune(self, unused_for: Duration, prefix: str = "") -> int:
        return self.current().prune(unused_for, prefix)

    def verify(self, lease: Lease, connection: object) -> None:
        """See :meth:`SqlAlchemyLockProvider.verify`.

        :raises ConfigurationError: the test database is in memory, where transactions have no locks.
        """
        provider = self.current()
        if not isinstance(provider, SqlAlchemyLockProvider):
            raise ConfigurationError(
                "verify() needs a test database with a file or a server: set DATABASES[…]['TEST'] = "
                "{'NAME': 'test.sqlite3'}"
            )
        provider.verify(lease, connection)

    def create_schema(self) -> None:
        return self.current().create_schema()

    def close(self) -> None:
        """Close the idle connections. The next operation opens a new connection."""
        for provider in list(self._providers.values()):
            provider.close()


_WHERE = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
_CREDENTIALS = ("user", "username", "password", "passwd")
"""The drivers' names for them."""


def _with_current_credentials(url: URL, alias: str, options: dict[str, Any]) -> ProgramProvider:
    """Return a provider that gets the credentials of each new connection from Django's backend, as Django itself does.

    Credentials may be short-lived, for example tokens of Amazon RDS.
    """
    provider = SqlAlchemyLockProvider(url, **options)

    def fill_in(dialect: Any, _record: object, _args: object, parameters: dict[str, Any]) -> None:
        _, current = dialect.create_connect_args(store_url(connection_of(alias)))
        parameters.update({name: current[name] for name in _CREDENTIALS if name in current})

    event.listen(provider._client.engine, "do_connect", fill_in, insert=True)
    return provider


def _for_tests(url: URL, options: dict[str, Any]) -> ProgramProvider:
    """Return a provider that keeps no connection, because the test runner drops the database at the end."""
    if url.get_backend_name() == "sqlite" and url.database == ":memory:":
        return InMemoryLockProvider(history=options.get("history"))
    options.pop("timeout", None)
    return SqlAlchemyLockProvider(create_engine(url, poolclass=NullPool), **options)


@cache
def provider_of_process() -> DatabaseLockProvider:
    return DatabaseLockProvider()
