"""The application and its setup at the start of Django. The setup does not connect to the database."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import router
from django.db.models.signals import post_migrate

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.events import logger
from shedlock_py.integrations.django import lock_provider
from shedlock_py.integrations.django.conf import listeners_of, read_settings
from shedlock_py.integrations.django.databases import connection_of, is_in_memory
from shedlock_py.integrations.django.system_checks import check_deployment, check_settings, check_store
from shedlock_py.providers.sqlalchemy.errors import Missing, missing
from shedlock_py.settings.defaults import configure


class ShedLockConfig(AppConfig):
    name = "shedlock_py.integrations.django"
    label = "shedlock"
    verbose_name = "ShedLock"

    def ready(self) -> None:
        provider = lock_provider()
        try:
            defaults = read_settings().defaults
            configure(provider, **{**defaults, "listeners": listeners_of(defaults)})
        except ConfigurationError as error:  # "manage.py check" reports it; without a store, no guarded task runs
            provider.problem = error
            configure(provider)
        post_migrate.connect(create_tables, sender=self)
        checks.register(check_settings, "shedlock")
        checks.register(check_store, checks.Tags.database)
        checks.register(check_deployment, "shedlock", deploy=True)


def create_tables(using: str, **_: Any) -> None:
    """Make missing tables after each "migrate" of the locks' database, and in a test database.

    This runs after the migrations and is not a migration. So the tables follow ``create_schema()`` if a setting such as
    HISTORY changes later, and also exist in tests without migrations.
    """
    if using != read_settings().database or not router.allow_migrate(using, ShedLockConfig.label):
        return
    if is_in_memory(connection_of(using)):
        return  # in tests the locks are in memory, too; otherwise such a database cannot have locks
    try:
        lock_provider().create_schema()
    except ProviderError as error:
        if missing(error.__cause__) is not Missing.COLUMN:
            raise
        logger.warning("%s", error)  # a table of ShedLock for Java: this error and "manage.py check" say how to use it
