"""A Django application: the locks are in a database of ``DATABASES``. Described in ``docs/how-to/django.md``.

``INSTALLED_APPS = ["shedlock_py.integrations.django", …]`` is all that is needed. Then ``@scheduler_lock`` uses that
database, ``migrate`` makes the table, ``manage.py shedlock`` is the command line, and the admin shows locks and runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shedlock_py.integrations.django.django_provider import DatabaseLockProvider

__all__ = ["lock_provider"]


def lock_provider() -> DatabaseLockProvider:
    """The provider of this process, of the database that ``settings.SHEDLOCK`` names; always the same.

    For what takes a ``provider=``. Guards do not need it: the application makes it the default of :func:`configure`.
    Nothing is connected, and no setting is read, before its first operation.
    """
    from shedlock_py.integrations.django.django_provider import (
        provider_of_process,  # late: Django imports this package early
    )

    return provider_of_process()
