from __future__ import annotations

from itertools import count
from typing import Any, ClassVar

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    credentials: ClassVar[dict[str, str]] = {"user": "short-lived", "password": "token"}
    made: ClassVar[count[int]] = count()

    def get_connection_params(self) -> dict[str, Any]:
        next(self.made)
        return {**super().get_connection_params(), **self.credentials}
