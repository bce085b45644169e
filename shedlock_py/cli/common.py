"""What the commands share: options, exit codes, errors on one line, output for people and as JSON."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from reprlib import repr as short_repr
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console

from shedlock_py.durations import parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError, ShedLockError
from shedlock_py.options import is_async_provider
from shedlock_py.provider import LockProvider
from shedlock_py.urls import provider_from_text

F = TypeVar("F", bound=Callable[..., Any])

# Exit codes: those of sysexits.h, as flock(1) uses them.
OK = 0
NO = 1
"""No such lock, not held, a check failed."""
USAGE = 64
UNAVAILABLE = 69
"""The store failed or did not answer."""
SOFTWARE = 70
"""A mistake in shedlock_py itself."""
IO_ERROR = 74
"""The output cannot be written, as on a full disk."""
LOST = 75
"""``shedlock run``: the lease was lost, and the command was ended."""
CONFIG = 78
"""The store's URL, a package that is missing, a value that cannot work."""
INTERRUPTED = 130
"""Ctrl-C, as shells have it."""

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class DurationType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, and we allow 8.2
    """A duration as people write it: 10m, 1h30m, 250ms."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            return parse_duration(value, zero=self._zero)
        except ConfigurationError:  # its message shows Python values, too
            limits = "up to ten years" if self._zero else "above zero, up to ten years"
            hint = f"write for example 10m, 1h30m, 90s, 250ms ({limits})"
            self.fail(f"{short_repr(value)} is not a duration; {hint}", param, ctx)


def option(*names: str, envvar: str, **settings: Any) -> Callable[[F], F]:
    """A click option that shows its variable of the environment in ``--help``."""
    return click.option(*names, envvar=envvar, show_envvar=True, **settings)


def duration_option(*names: str, envvar: str, zero: bool = False, **settings: Any) -> Callable[[F], F]:
    return option(*names, envvar=envvar, type=DurationType(zero=zero), show_default=True, **settings)


store_option = option(
    "--store",
    envvar="SHEDLOCK_STORE",
    metavar="URL",
    help="Where the locks are: a URL (postgresql://…, mysql://…, sqlite:///…, redis://…, mongodb://…) or "
    "pkg.module:provider_or_factory. A URL with a password is better given in the variable: others can see arguments.",
)
json_option = option("--json", "as_json", envvar="SHEDLOCK_JSON", is_flag=True, help="Print JSON, for programs.")


@contextmanager
def open_store(store: str | None, *, may_be_missing: bool = False) -> Iterator[LockProvider]:
    """The provider at ``store``, closed at the end.

    :param may_be_missing: a SQLite file may be missing. Otherwise SQLite would create the file of a mistyped path.
    :raises ConfigurationError: there is no such provider.
    :raises ProviderError: the SQLite file is missing.
    """
    if not store:
        raise ConfigurationError("no store: give --store URL or set SHEDLOCK_STORE, for example sqlite:///locks.db")
    if "://" not in store:
        sys.path.insert(0, os.getcwd())  # as python -m does, and as users of a reference expect
    provider: Any = provider_from_text(store)
    if is_async_provider(provider):
        raise ConfigurationError(f"{store} is an async provider; the command line needs a sync one of the same store")
    try:
        if not may_be_missing:
            _require_file(store)
        yield provider
    finally:
        try:
            getattr(provider, "close", lambda: None)()
        except Exception as error:  # the command is done: this must not replace its exit code
            logging.getLogger("shedlock_py").warning("the store could not be closed: %s", one_line(error))


def _require_file(store: str) -> None:
    """:raises ProviderError: ``store`` is the URL of a SQLite file that does not exist."""
    if store.partition("://")[0].partition("+")[0].lower() != "sqlite":
        return
    from sqlalchemy.engine import make_url  # late: the provider has found the package

    name = make_url(store).database
    if not name or name == ":memory:" or name.startswith("file:"):
        return  # in memory, which the provider refuses; or a URI, which decides whether to create the file
    try:
        os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        raise ProviderError(
            f"there is no SQLite file {os.path.abspath(name)}",
            operation="open",
            hint="is the path right? To create the file: shedlock schema --create",
        ) from None
    except OSError:
        pass  # such as a directory that this user may not search: the provider has the reason


def is_shared(provider: object) -> bool:
    """Whether other processes see the locks of ``provider``."""
    return getattr(provider, "is_shared", True)


def fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error, and exit with ``code`` even if that line cannot be written."""
    warn(message)
    sys.exit(code)


def warn(message: str) -> None:
    """Print one line on standard error."""
    with suppress(OSError):
        click.echo(printable(f"shedlock: {message}"), err=True)


class Commands(click.Group):
    """A group that reports errors on one line, without a traceback unless ``--debug`` was given."""

    def main(self, *args: Any, **settings: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal may not know all characters of a lock name
        try:
            sys.exit(super().main(*args, **{**settings, "standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(USAGE)
        except click.ClickException as error:
            text = one_line(error.format_message())
            context = getattr(error, "ctx", None)
            fail(f"{text.rstrip('.')} (see {context.command_path} --help)" if context else text, USAGE)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except ShedLockError as error:
            fail(one_line(error), UNAVAILABLE if isinstance(error, ProviderError) else CONFIG)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:  # a full disk of the store: ProviderError
                fail(f"the output cannot be written: {error.strerror}", IO_ERROR)
            fail(f"internal error: {type(error).__name__}: {one_line(error)}; --debug shows more", SOFTWARE)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if not isinstance(error, click.ClickException | click.exceptions.Exit) and ctx.params.get("debug"):
                logging.getLogger("shedlock_py").exception("--debug: the traceback of the error below")
            raise


def one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split())


# Output. Names and holders in the store may be hostile: nothing in them may control a terminal.


def printable(text: str) -> str:
    """``text`` with control characters, line ends, changes of direction and the like escaped, as in ``repr``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def console() -> Console:
    """For tables on standard output, with colours on a terminal only."""
    return Console(highlight=False, soft_wrap=False)


def print_json(value: object) -> None:
    is_utf8 = console().encoding.startswith("utf")  # another encoding may lack a character, and no JSON would be left
    text = json.dumps(value, indent=2, ensure_ascii=not is_utf8)
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))
