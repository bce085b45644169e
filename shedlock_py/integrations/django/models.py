"""Models without rows, for permissions and the admin. The provider reads the locks and runs."""

from __future__ import annotations

from typing import Any

from django.db import models


class Nothing(models.Manager):
    """Keeps queries of the ORM, for example of "dumpdata", from the lock table."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class WithoutRows(models.Model):
    name = models.CharField(max_length=64, primary_key=True)

    objects = Nothing()

    class Meta:
        abstract = True
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.name)


class Lock(WithoutRows):
    class Meta(WithoutRows.Meta):
        permissions = (
            ("pause_lock", "Can pause and resume locks"),
            ("force_release_lock", "Can free locks by force"),
        )


class Run(WithoutRows): ...
