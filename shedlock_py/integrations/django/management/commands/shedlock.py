"""``manage.py shedlock …``: the command line for the store in the settings."""

from __future__ import annotations

import sys
from argparse import REMAINDER
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from shedlock_py.integrations import missing_extra

STORE = "shedlock_py.integrations.django:lock_provider"


class Command(BaseCommand):
    help = "The command line of shedlock_py, for the database that settings.SHEDLOCK names. See: manage.py shedlock -h"
    requires_system_checks: Sequence[str] = ()  # not before each job that "shedlock run" starts

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command line with all options but Django's own. Exit with its exit code."""
        _shedlock(_without_options_of_django(argv[2:]), f"{argv[0]} {argv[1]}")

    def print_help(self, prog_name: str, subcommand: str) -> None:
        _shedlock(["--help"], f"{prog_name} {subcommand}")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command line for ``call_command``. An exit code that is not 0 raises ``SystemExit``."""
        arguments = options["arguments"]
        command = next((word for word in arguments if not word.startswith("-")), "")
        if command in ("run", "lead"):
            raise CommandError(
                f"call_command() refuses shedlock {command}, which takes over the signals and settings of its process:"
                f" start a process, as with subprocess.run([sys.executable, 'manage.py', 'shedlock', '{command}', …]),"
                " or guard a function with @scheduler_lock"
            )
        stdout, stderr = options.get("stdout") or sys.stdout, options.get("stderr") or sys.stderr
        with redirect_stdout(stdout), redirect_stderr(stderr):
            try:
                _shedlock(arguments, "shedlock")
            except SystemExit as error:
                if error.code:
                    raise


def _without_options_of_django(arguments: list[str]) -> list[str]:
    """Drop ``--settings`` and ``--pythonpath``, which Django has read. Keep them in the command after "--"."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept: list[str] = []
    own = iter(arguments[:end])
    for argument in own:
        name, equals, _ = argument.partition("=")
        if name not in ("--settings", "--pythonpath"):
            kept.append(argument)
        elif not equals:
            next(own, None)  # its value
    return kept + arguments[end:]


def _shedlock(arguments: Sequence[str], name: str) -> None:
    try:
        from shedlock_py.cli.app import shedlock  # late: the packages may be missing
    except ModuleNotFoundError as error:
        raise missing_extra("django", str(error.name), error) from error
    shedlock(args=arguments, prog_name=name, obj=STORE)
