"""Write the report in a transaction that a stale holder cannot commit."""

from django.db import connection, transaction

from shedlock_py import hold
from shedlock_py.integrations.django import lock_provider


def write_report(content: str) -> None:
    with hold("report", lock_at_most_for="10m") as lease, transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("UPDATE report SET content = %s", [content])
        lock_provider().verify(lease, connection)
