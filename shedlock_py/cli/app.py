"""The command ``shedlock`` and its subcommands."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import click

from shedlock_py.cli.common import (
    CONFIG,
    INTERRUPTED,
    IO_ERROR,
    SOFTWARE,
    UNAVAILABLE,
    USAGE,
    fail,
    note,
    one_line,
    option,
)
from shedlock_py.errors import ProviderError, ShedLockError
from shedlock_py.events import logger
from shedlock_py.runtime.versions import __version__

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_WITH_SECRETS = ("boto3", "botocore", "aiobotocore", "requests_oauthlib", "oauthlib", "kubernetes")
"""Loggers that write credentials at DEBUG, for example of an assumed role or an OpenID Connect sign-in."""


class _LateCommands(UserDict[str, Any]):
    """Commands by name. The module of a command is imported when the command is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        module, attribute = super().__getitem__(name).split(":")
        command: click.Command = getattr(import_module(f"shedlock_py.cli.{module}"), attribute)
        return command


@contextmanager
def _closed_pipes() -> Iterator[None]:
    """End silently if a reader such as head(1) has closed the output. Click would exit with 1, our code for "no"."""
    try:
        yield
    except BrokenPipeError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        sys.exit(IO_ERROR)


class Commands(click.Group):
    """A group that reports errors on one line, without a traceback unless ``--debug`` was given."""

    def main(self, *args: Any, **settings: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # the terminal may lack a character of a lock name
        if "_SHEDLOCK_COMPLETE" in os.environ:
            from shedlock_py.cli.completion import register  # late: only shell completion needs it

            register()
        try:
            sys.exit(super().main(*args, **{**settings, "standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as error:
            note(error.format_message())
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
            if isinstance(error, ModuleNotFoundError) and error.name == "rich":
                raise  # the command prints tables; __main__ names the extra
            if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:  # the store's full disk raises ProviderError
                fail(f"the output cannot be written: {error.strerror}", IO_ERROR)
            fail(f"internal error: {type(error).__name__}: {one_line(error)}; --debug shows more", SOFTWARE)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        with _closed_pipes():  # --help
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _closed_pipes():
                return super().invoke(ctx)
        except Exception as error:
            if not isinstance(error, click.ClickException | click.exceptions.Exit) and ctx.params.get("debug"):
                logger.exception("--debug: the traceback of the error below")
            raise


_COMMANDS = _LateCommands({
    "run": "run:run", "once": "once:once", "lead": "lead:lead", "list": "show:list_", "show": "show:show",
    "watch": "watch:watch",
    "history": "history:history", "overdue": "history:overdue", "page": "page:page",
    "pause": "pause:pause", "resume": "pause:resume", "release": "manage:release", "prune": "manage:prune",
    "schema": "manage:schema", "doctor": "doctor:doctor", "leader": "manage:leader", "demote": "manage:demote",
})  # fmt: skip


@click.group(
    cls=Commands,
    commands=_COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="shedlock")
@option("--debug", is_flag=True, help="Log everything, and show tracebacks.")
@click.pass_context
def shedlock(ctx: click.Context, debug: bool) -> None:
    """Run N copies of your app. Each scheduled job still runs once.

    Without a command, show the ten locks that matter most now. This needs SHEDLOCK_STORE.

    Stores are URLs: postgresql://…, mysql://…, sqlite:///…, redis://…, mongodb://…; or pkg.module:provider. A URL with
    a password belongs in SHEDLOCK_STORE. Other users can see arguments.
    """
    handler = logging.StreamHandler()
    if not debug:  # Ctrl-C while an async driver connects may leave an exception that nobody awaits
        handler.addFilter(lambda record: record.name != "asyncio")
    level = logging.DEBUG if debug else logging.WARNING
    logging.basicConfig(format="shedlock: %(message)s", level=level, handlers=[handler])
    if debug:
        for name in _WITH_SECRETS:
            logging.getLogger(name).setLevel(logging.INFO)
    if ctx.invoked_subcommand is None:
        store = os.environ.get("SHEDLOCK_STORE", "")
        if not (store.strip() or ctx.obj):
            raise click.exceptions.NoArgsIsHelpError(ctx)
        from shedlock_py.cli.show import overview  # late: loads rich

        overview(store)
