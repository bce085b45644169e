"""A Django application with its locks in a database of ``DATABASES``. See ``docs/how-to/django.md``.

Add it with ``INSTALLED_APPS = ["shedlock_py.integrations.django", …]``. Then ``@scheduler_lock`` uses the database,
``migrate`` makes the table, ``manage.py shedlock`` is the command line, and the admin shows locks and runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shedlock_py.integrations.django.django_provider import DatabaseLockProvider

__all__ = ["lock_provider"]


def lock_provider() -> DatabaseLockProvider:
    """Return the provider of this process. It uses the database that ``settings.SHEDLOCK`` names.

    Pass it to functions with a ``provider=``. Guards do not need it, because the application makes it the default of
    :func:`configure`. Before its first operation, the provider neither connects nor reads settings.
    """
    from shedlock_py.integrations.django.django_provider import (
        provider_of_process,  # late: Django imports this package early
    )

    return provider_of_process()
