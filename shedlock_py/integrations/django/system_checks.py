"""Checks for ``manage.py check``: settings that cannot work, and a database that is not ready for locks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.core import checks
from django.db import router

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.integrations.django import lock_provider
from shedlock_py.integrations.django.conf import read_settings
from shedlock_py.integrations.django.databases import connection_of, is_in_memory
from shedlock_py.integrations.django.django_provider import DatabaseLockProvider
from shedlock_py.operators.checks import NAME, REACH, Check, failed, read_only_checks
from shedlock_py.settings.off_switch import is_active


def check_settings(**_: Any) -> list[Any]:
    """Check the settings, without a connection to the database."""
    try:
        conf = read_settings()
        database = conf.database
        connection = connection_of(database)
        if is_in_memory(connection):
            return [
                checks.Warning(
                    f"DATABASES[{database!r}] is in memory: it cannot have locks, and no guarded task runs",
                    hint="Use a file. Only tests in one process can use locks in memory.",
                    id="shedlock.W001",
                )
            ]
        if (problem := lock_provider().problem) is not None:
            raise problem
        DatabaseLockProvider(conf).current()  # a new provider, because the options may have changed
        is_replica = connection.settings_dict["TEST"].get("MIRROR") is not None
    except ConfigurationError as error:
        return [checks.Error(str(error), hint="See docs/how-to/django.md.", id="shedlock.E001")]
    found = []
    if not router.allow_migrate(database, "shedlock"):
        found.append(
            checks.Warning(
                f'a database router forbids "shedlock" on {database!r}: migrate does not make the lock table there',
                hint="Let allow_migrate() return True or None for this application and database, or make the table "
                "with: manage.py shedlock schema --create",
                id="shedlock.W002",
            )
        )
    if is_replica:
        found.append(
            checks.Warning(
                f"DATABASES[{database!r}] is a mirror in tests (TEST['MIRROR']), so it seems to be a replica: locks "
                f"need the primary",
                hint="Let SHEDLOCK['DATABASE'] name the alias of the primary.",
                id="shedlock.W003",
            )
        )
    return found


def check_store(databases: Sequence[str] | None, **_: Any) -> list[Any]:
    """Check the database, for ``manage.py check --database default``. Write nothing."""
    is_migrating = sys.argv[1:2] == ["migrate"]  # "migrate" checks first, and then makes the table
    try:
        if is_migrating or read_settings().database not in (databases or ()):
            return []
        provider = lock_provider()
        found = [*read_only_checks(provider), *_history(provider)]
    except ConfigurationError:
        return []  # check_settings reports it
    has_table = "Has migrate run for this database? Otherwise"
    return [
        checks.Warning(
            f"{check.check}: {check.message}",
            hint=f"{has_table}: {check.hint}" if check.check in (REACH, "history") and check.hint else check.hint,
            id="shedlock.W004",
        )
        for check in found
        if check.status != "ok"
    ]


def _history(provider: Any) -> Iterator[Check]:
    """Check the table of runs. It may be missing if HISTORY was switched on later."""
    with suppress(ConfigurationError):  # HISTORY is switched off
        try:
            provider.runs(NAME, 1)
        except ProviderError as error:
            yield failed("history", error)


def check_deployment(**_: Any) -> list[Any]:
    """Check for ``manage.py check --deploy``."""
    found = []
    if not is_active():
        found.append(
            checks.Warning(
                "locking is switched off: every process runs every task",
                hint="Unset the variable SHEDLOCK_ACTIVE.",
                id="shedlock.W005",
            )
        )
    try:
        connection = connection_of(read_settings().database)
    except ConfigurationError:
        return found
    if connection.vendor == "sqlite":
        found.append(
            checks.Warning(
                "the locks are in a SQLite file: they guard only the processes of one machine",
                hint="For several machines or containers, use PostgreSQL, MySQL or MariaDB.",
                id="shedlock.W006",
            )
        )
    return found
