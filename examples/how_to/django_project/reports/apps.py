"""The lock provider, made from Django's own database settings."""

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate
from sqlalchemy import URL

from shedlock_py import configure
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider

DIALECTS = {
    "django.db.backends.postgresql": "postgresql",
    "django.db.backends.mysql": "mysql",
    "django.db.backends.sqlite3": "sqlite",
}


def lock_provider(using: str = "default") -> SqlAlchemyLockProvider:
    """For the database of that alias; nothing is connected yet."""
    database = connections[using].settings_dict
    url = URL.create(
        DIALECTS[database["ENGINE"]],  # the first driver of it that is installed
        username=database["USER"] or None,
        password=database["PASSWORD"] or None,
        host=database["HOST"] or None,
        port=int(database["PORT"]) if database["PORT"] else None,
        database=str(database["NAME"]),
    )
    return SqlAlchemyLockProvider(url)


def create_lock_table(using: str, **_: Any) -> None:
    """After "manage.py migrate", and when Django makes its test database."""
    connection = connections[using]
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        return  # Django's test database: private to Django's own connections, so it can hold no locks
    provider = lock_provider(using)
    provider.create_schema()
    provider.close()


class ReportsConfig(AppConfig):
    name = "reports"

    def ready(self) -> None:
        configure(provider=lock_provider())
        post_migrate.connect(create_lock_table, sender=self)
