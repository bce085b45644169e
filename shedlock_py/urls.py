"""Providers from URLs, and from references to objects in the application's modules."""

from __future__ import annotations

import inspect
import re
import threading
from importlib import import_module
from reprlib import repr as short_repr
from typing import Any

from shedlock_py._versions import install_line, sql_install_line
from shedlock_py.errors import ConfigurationError
from shedlock_py.provider import AsyncLockProvider, LockProvider

# The scheme of a URL picks the module, which is imported only then.

_SQL = ("shedlock_py.providers.sqlalchemy", "SqlAlchemyLockProvider", "sqlalchemy")
_REDIS = ("shedlock_py.providers.redis", "RedisLockProvider", "redis")
_REDIS_QUORUM = ("shedlock_py.providers.redis", "RedisQuorumLockProvider", "redis")
_MONGODB = ("shedlock_py.providers.mongodb", "MongoLockProvider", "mongodb")
SCHEMES = {
    "memory": ("shedlock_py.providers.memory", "InMemoryLockProvider", ""),
    **dict.fromkeys(("sqlite", "postgresql", "postgres", "mysql", "mariadb"), _SQL),
    **dict.fromkeys(("redis", "rediss", "unix"), _REDIS),
    **dict.fromkeys(("redis+quorum", "rediss+quorum"), _REDIS_QUORUM),
    **dict.fromkeys(("mongodb", "mongodb+srv"), _MONGODB),
    "etcd": ("shedlock_py.providers.etcd", "EtcdLockProvider", "etcd"),
    "dynamodb": ("shedlock_py.providers.dynamodb", "DynamoDBLockProvider", "dynamodb"),
    "s3": ("shedlock_py.providers.s3", "S3LockProvider", "s3"),
    "kubernetes": ("shedlock_py.providers.kubernetes", "KubernetesLockProvider", "kubernetes"),
}
_DRIVERS_IN_SCHEME = _SQL  # SQLAlchemy's way to name one: postgresql+psycopg

ENTRY_POINTS = {"": "shedlock_py.providers", "Async": "shedlock_py.async_providers"}
"""The entry-point groups in which other packages offer providers: the name is the scheme, the value takes the URL."""


def provider_from_url(url: str) -> LockProvider:
    """A provider for the store at ``url``; nothing is connected yet.

    ``sqlite:///locks.db``, ``postgresql://user@host/db`` (or ``postgres://…``), ``mysql://…``, ``mariadb://…`` (a
    driver may be named as SQLAlchemy does: ``postgresql+psycopg://…``), ``redis://…``, ``rediss://…``,
    ``unix:///path/to/redis.sock``, ``redis+quorum://host1,host2,host3``, ``rediss+quorum://…``, ``mongodb://host/db``,
    ``mongodb+srv://…``, ``etcd://host:2379``, ``dynamodb://table``, ``s3://bucket/prefix``,
    ``kubernetes://namespace``, ``memory://``, and the schemes that installed packages offer in the entry-point group
    ``shedlock_py.providers``.

    :raises ConfigurationError: an unknown scheme, or a package that is missing (with the ``pip install`` line).
    """
    provider: LockProvider = _from_url(url, "")
    return provider


def async_provider_from_url(url: str) -> AsyncLockProvider:
    """:func:`provider_from_url` for asyncio: picks an async driver where the URL names none.

    Other packages offer async providers in the entry-point group ``shedlock_py.async_providers``.
    """
    provider: AsyncLockProvider = _from_url(url, "Async")
    return provider


def has_async_driver(url: str) -> bool:
    """Whether ``url`` names a driver of SQLAlchemy that is for asyncio only, as ``postgresql+asyncpg://…`` does."""
    scheme = url.partition("://")[0].lower()
    if "+" not in scheme or SCHEMES.get(scheme.partition("+")[0]) is not _DRIVERS_IN_SCHEME:
        return False
    try:
        from sqlalchemy import URL  # late: such a URL needs it

        return URL.create(scheme).get_dialect().is_async
    except Exception:  # the package is missing, or there is no such driver: a provider says which
        return False


LONGEST_URL = 10_000
"""Characters. Drivers would take minutes to parse a longer one."""


def _from_url(url: object, prefix: str) -> Any:
    if not isinstance(url, str) or not url.strip():
        found = "is empty" if isinstance(url, str) else f"must be a string, not {short_repr(url)}"
        raise ConfigurationError(
            f"the store URL {found}. Is its environment variable set? Examples: 'postgresql://user@host/db', "
            f"'redis://host:6379/0'"
        )
    if len(url) > LONGEST_URL:
        raise ConfigurationError(f"the store URL has {len(url)} characters; the maximum is {LONGEST_URL}")
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    known = SCHEMES.get(scheme)
    if known is None and SCHEMES.get(scheme.partition("+")[0]) is _DRIVERS_IN_SCHEME:
        known = _DRIVERS_IN_SCHEME
    if known is None:
        from importlib.metadata import entry_points  # late: slow, and needed by few

        offered = entry_points(group=ENTRY_POINTS[prefix])
        if scheme not in offered.names:
            what = f"unknown scheme {scheme!r}" if scheme else "not a URL, such as 'sqlite:///locks.db'"
            schemes = ", ".join(f"{scheme}://" for scheme in (*SCHEMES, *sorted(offered.names)))
            raise ConfigurationError(f"store URL: {what}; supported: {schemes}")
        entry_point = offered[scheme]
        try:
            make_provider = entry_point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"the provider for {scheme}:// that {entry_point.value!r} names cannot be loaded: {error}"
            ) from error
        return make_provider(url)
    module, name, extra = known
    try:
        provider_class = getattr(import_module(module), prefix + name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("shedlock_py."):
            what = f"this program was built without the module {error.name!r}"
            raise ConfigurationError(f"{what}: PyInstaller needs the option --collect-all shedlock_py") from error
        line = sql_install_line(scheme, is_async=bool(prefix)) if known is _SQL else install_line(extra)
        raise ConfigurationError(f"a store at {scheme}:// needs the package {error.name!r}: {line}") from None
    return provider_class(url) if scheme != "memory" else provider_class.from_url(url)


# References

_providers: dict[str, Any] = {}  # one for each text, in each process
_providers_mutex = threading.RLock()  # a module that is imported for a provider may make another one


def provider_from_text(text: str) -> Any:
    """The provider of a URL or of a reference (``"pkg.module:provider_or_factory"``); the same for the same text.

    :raises ConfigurationError: there is none.
    """
    with _providers_mutex:
        if text in _providers:
            return _providers[text]
        if "://" in text:
            provider: Any = provider_from_url(text)
        else:
            found = import_reference(text)
            try:
                provider = found() if inspect.isclass(found) or not hasattr(found, "acquire") else found
            except Exception as error:
                raise ConfigurationError(f"calling {text} for a provider failed: {error!r}") from error
            if inspect.iscoroutine(provider):
                provider.close()
                raise ConfigurationError(f"{text} is an async function; name a provider, or a plain function")
            if not hasattr(provider, "acquire"):
                raise ConfigurationError(f"{text} is neither a provider nor a function that makes one")
        return _providers.setdefault(text, provider)  # that module may have made it meanwhile


NEITHER = 'neither a URL ("sqlite:///locks.db") nor a reference ("pkg.module:name")'


def import_reference(reference: str) -> Any:
    """The object that ``"pkg.module:name"`` names. :raises ConfigurationError: there is none, or its import fails."""
    from pkgutil import resolve_name  # late, as few programs need it

    if not re.fullmatch(r"[\w.]+(:[\w.]+)?", reference):  # not quoted: it may be a URL with a password
        raise ConfigurationError(f"the given text is {NEITHER}")
    if ":" not in reference:  # perhaps the path of a file
        raise ConfigurationError(f"{reference!r} is {NEITHER}")
    try:
        return resolve_name(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f'cannot import {reference!r} ({error}); write "pkg.module:name"') from error
    except Exception as error:  # of the module itself, such as a variable that is not set
        raise ConfigurationError(f"cannot import {reference!r}: {error!r}") from error
