"""Providers from URLs, and from references to objects in the application's modules."""

from __future__ import annotations

import inspect
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.text import clean_url, quoted
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.runtime.process import PerProcess
from shedlock_py.runtime.versions import install_line, missing_package, sql_install_line

if TYPE_CHECKING:
    from shedlock_py.model.stores import Store

_ALIASES = {"postgres": "postgresql", "valkey": "redis", "valkeys": "rediss"}

ENTRY_POINTS = {"": "shedlock_py.providers", "Async": "shedlock_py.async_providers"}
"""The entry-point groups for providers of other packages. The name is the scheme; the value is called with the URL."""


def provider_from_url(url: str) -> LockProvider:
    """A new provider for the store at ``url``; nothing is connected yet.

    The scheme picks the store: ``sqlite:///locks.db``, ``postgresql://user@host/db``, ``redis://host:6379/0``. The
    documentation has a page about each store. A URL of a SQL database may name a driver as SQLAlchemy does:
    ``postgresql+psycopg://…``. Other packages offer their schemes in the entry-point group ``shedlock_py.providers``.
    White space around the URL does not count.

    :raises ConfigurationError: an unknown scheme, or a package that is missing (with the ``pip install`` line).
    """
    provider: LockProvider = _from_url(url, "")
    return provider


def async_provider_from_url(url: str) -> AsyncLockProvider:
    """:func:`provider_from_url` for asyncio: picks an async driver if the URL does not name a driver.

    Other packages offer async providers in the entry-point group ``shedlock_py.async_providers``.
    """
    provider: AsyncLockProvider = _from_url(url, "Async")
    return provider


def has_async_driver(url: str) -> bool:
    """Return whether ``url`` names an asyncio driver of SQLAlchemy, such as ``postgresql+asyncpg://…``."""
    scheme = _scheme_of(url)
    store = _built_in(scheme) if "+" in scheme else None
    if store is None or not store.is_sql:
        return False
    try:
        from sqlalchemy import URL  # late: only such a URL needs it

        return URL.create(scheme).get_dialect().is_async
    except Exception:  # the package or the driver is missing: the provider's error says which
        return False


def _from_url(url: object, prefix: str) -> Any:
    if not isinstance(url, str):
        raise ConfigurationError(
            f"the store URL must be a string, not {quoted(url)}. Is its environment variable set? Examples: "
            f"'postgresql://user@host/db', 'redis://host:6379/0'"
        )
    url = clean_url(url)
    scheme = _scheme_of(url)
    store = _built_in(scheme)
    if store is None:
        entry_point = _entry_point(scheme, prefix)
        try:
            make_provider = entry_point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"the provider for {scheme}:// that {entry_point.value!r} names cannot be loaded: {error}"
            ) from error
        return make_provider(url)
    try:
        provider_class = getattr(import_module(f"shedlock_py.providers.{store.module}"), prefix + store.class_name)
    except ModuleNotFoundError as error:
        line = sql_install_line(scheme, is_async=bool(prefix)) if store.is_sql else install_line(store.extra)
        raise ConfigurationError(missing_package(f"a store at {scheme}://", error, line)) from None
    return provider_class(_canonical(url)) if scheme != "memory" else provider_class.from_url(url)


def _canonical(text: str) -> str:
    """Return ``text`` without the white space around it. Schemes with the same meaning become the first of them.

    :raises ConfigurationError: as :func:`clean_url`.
    """
    text = clean_url(text)
    scheme, separator, rest = text.partition("://")
    store, plus, driver = scheme.partition("+")
    name = _ALIASES.get(store.lower()) if separator else None
    return text if name is None else f"{name}{plus}{driver}{separator}{rest}"


def _scheme_of(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else ""


def _built_in(scheme: str) -> Store | None:
    """Return the library's store for ``scheme``, or None."""
    from shedlock_py.model.stores import BY_SCHEME  # late: few modules are loaded with the package

    database = BY_SCHEME.get(scheme.partition("+")[0])
    return database if database is not None and database.is_sql else BY_SCHEME.get(scheme)


def _entry_point(scheme: str, *prefixes: str) -> Any:
    """Return another package's entry point for ``scheme``.

    :raises ConfigurationError: no package offers the scheme.
    """
    from importlib.metadata import entry_points  # late: slow, and needed by few

    from shedlock_py.model.stores import BY_SCHEME  # late, too

    groups = [entry_points(group=ENTRY_POINTS[prefix]) for prefix in prefixes]
    for offered in groups:
        if scheme in offered.names:
            return offered[scheme]
    what = f"unknown scheme {scheme!r}" if scheme else "not a URL, such as 'sqlite:///locks.db'"
    names = sorted({name for offered in groups for name in offered.names})
    raise ConfigurationError(
        f"store URL: {what}; supported: {', '.join(f'{name}://' for name in (*BY_SCHEME, *names))}"
    )


# Texts in the place of a provider: URLs, and references to objects in the application's modules. All users of one text
# in a process share one provider and its connections.

_providers: dict[str, Any] = {}  # one for each text, in each process
_async_providers: dict[str, Any] = {}  # for async code, if the URL does not name an async driver
_directories: dict[str, str] = {}  # where a relative path of a SQLite file was opened
_RELATIVE = re.compile(r"sqlite(\+\w+)?:///[^/]")
_mutex = PerProcess(threading.RLock)
"""Reentrant, because a module that is imported for a provider may open another provider. A forked child has its own."""


def checked_text(text: str) -> str:
    """Check that ``text`` can name a provider, and return it without white space, aliases resolved.

    Loads no driver and imports no module of the application.

    :raises ConfigurationError: the text is not a URL with a known scheme, and not a reference.
    """
    text = _canonical(text)
    if "://" not in text:
        _check_reference(text)
    elif _built_in(_scheme_of(text)) is None:
        _entry_point(_scheme_of(text), *ENTRY_POINTS)
    return text


def provider_from_text(text: str) -> Any:
    """Return the provider of a URL or of a reference (``"pkg.module:provider_or_factory"``). One text has one provider.

    The provider is async if the URL names an async driver, such as ``postgresql+asyncpg://…``.

    :raises ConfigurationError: the text does not give a provider.
    """
    if (found := _providers.get(text)) is not None:
        return found
    text = _canonical(text)
    with _mutex.get():
        if text in _providers:
            return _providers[text]
        _note_directory(text)
        if "://" in text:
            provider: Any = _from_url(text, "Async" if has_async_driver(text) else "")
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


def async_provider_from_text(text: str) -> Any:
    """:func:`provider_from_text` for async code: a URL is opened for asyncio. A reference may name either kind."""
    text = _canonical(text)
    if "://" not in text or has_async_driver(text):
        return provider_from_text(text)
    with _mutex.get():
        if text not in _async_providers:
            _note_directory(text)
            _async_providers[text] = async_provider_from_url(text)
        return _async_providers[text]


def _note_directory(text: str) -> None:
    if _RELATIVE.match(text):
        _directories[text] = os.getcwd()


def forget_moved(text: str) -> dict[str, tuple[Any, Any, str]]:
    """Let ``text`` be opened again if it is the relative path of a SQLite file, and the working directory has changed.

    For ``configure()``, which a test may call in each temporary directory. Guards with such a URL use the new file from
    then on.

    :return: the forgotten providers and directory, by their text.
    """
    text = text.strip()
    if text not in _directories:
        return {}
    with _mutex.get():
        if _directories.get(text) in (None, os.getcwd()):
            return {}
        return {text: (_providers.pop(text, None), _async_providers.pop(text, None), _directories.pop(text))}


@contextmanager
def reopening(*given: object) -> Iterator[None]:
    """Call :func:`forget_moved` for each text of ``given``. If the block raises, restore the forgotten providers."""
    former: dict[str, tuple[Any, Any, str]] = {}
    for text in given:
        if isinstance(text, str):
            former |= forget_moved(text)
    try:
        yield
    except BaseException:
        with _mutex.get():
            for text, (provider, async_provider, directory) in former.items():
                _directories[text] = directory
                for opened, which in ((_providers, provider), (_async_providers, async_provider)):
                    opened.pop(text, None)
                    opened |= {} if which is None else {text: which}
        raise


def opened_providers(text: str) -> tuple[Any, ...]:
    """Return the providers of ``text`` that this process has made: for ordinary code, and for async code."""
    text = _canonical(text)
    found = (_providers.get(text), _async_providers.get(text))
    return tuple(provider for provider in found if provider is not None)


NEITHER = 'neither a URL ("sqlite:///locks.db") nor a reference ("pkg.module:name")'


def import_reference(reference: str) -> Any:
    """Return the object that ``"pkg.module:name"`` names.

    :raises ConfigurationError: it does not exist, or its import fails.
    """
    _check_reference(reference)
    try:
        return resolve_name(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f'cannot import {reference!r} ({error}); write "pkg.module:name"') from error
    except Exception as error:  # from the module itself, such as a missing variable
        raise ConfigurationError(f"cannot import {reference!r}: {error!r}") from error


def _check_reference(text: str) -> None:
    if not re.fullmatch(r"[\w.]+(:[\w.]+)?", text):  # not quoted: it may be a URL with a password
        raise ConfigurationError(f"the given text is {NEITHER}")
    if ":" not in text:  # perhaps the path of a file
        raise ConfigurationError(f"{text!r} is {NEITHER}")
