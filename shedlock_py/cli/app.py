"""The command ``shedlock`` and its subcommands."""

from __future__ import annotations

import logging

import click

import shedlock_py
from shedlock_py.cli.common import Commands, option
from shedlock_py.cli.doctor import doctor
from shedlock_py.cli.manage import demote, leader, prune, release, schema
from shedlock_py.cli.run import run
from shedlock_py.cli.show import list_, show
from shedlock_py.cli.watch import watch


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(shedlock_py.__version__, "-V", "--version", prog_name="shedlock")
@option("--debug", envvar="SHEDLOCK_DEBUG", is_flag=True, help="Log everything, and show tracebacks.")
def shedlock(debug: bool) -> None:
    """Run N copies of your app. Each scheduled job still runs once.

    Guards commands with a named lease in a store, and shows and mends the locks there.
    """
    logging.basicConfig(format="shedlock: %(message)s", level=logging.DEBUG if debug else logging.WARNING)


shedlock.add_command(run)
shedlock.add_command(list_)
shedlock.add_command(show)
shedlock.add_command(watch)
shedlock.add_command(release)
shedlock.add_command(prune)
shedlock.add_command(schema)
shedlock.add_command(doctor)
shedlock.add_command(leader)
shedlock.add_command(demote)
