"""Alembic's environment: the tables that the database should have, and how to reach it."""

import os

from alembic import context
from sqlalchemy import MetaData, create_engine

from shedlock_py.providers.sqlalchemy import lock_table

target_metadata = MetaData()  # in your project: from myapp.models import metadata as target_metadata
lock_table(target_metadata)  # name= and schema= as you give them to the provider

url = os.environ.get("DATABASE_URL") or context.config.get_main_option("sqlalchemy.url", "")


def run_migrations_offline() -> None:
    context.configure(url=url, target_metadata=target_metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_migrations_online() -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=target_metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


if context.is_offline_mode():
    run_migrations_offline()
else:
    run_migrations_online()
