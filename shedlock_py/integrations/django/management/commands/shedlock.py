"""``manage.py shedlock …``: the command line, on the store of the settings."""

from __future__ import annotations

import sys
from argparse import REMAINDER
from contextlib import redirect_stdout
from typing import Any

from django.core.management.base import BaseCommand

from shedlock_py.__main__ import main

STORE = "shedlock_py.integrations.django:lock_provider"


class Command(BaseCommand):
    help = "The command line of shedlock_py, on the database that settings.SHEDLOCK names. More: manage.py shedlock -h"
    requires_system_checks: tuple[str, ...] = ()  # jobs are started with it

    def run_from_argv(self, argv: list[str]) -> None:
        """All options are those of the command line, and its exit codes are those of this process."""
        main(args=argv[2:], prog_name=f"{argv[0]} {argv[1]}", obj=STORE)

    def print_help(self, prog_name: str, subcommand: str) -> None:
        main(args=["--help"], prog_name=f"{prog_name} {subcommand}", obj=STORE)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """For ``call_command``. An exit code that is not 0 raises ``SystemExit``."""
        with redirect_stdout(options.get("stdout") or sys.stdout):
            try:
                main(args=options["arguments"], prog_name="shedlock", obj=STORE)
            except SystemExit as error:
                if error.code:
                    raise
