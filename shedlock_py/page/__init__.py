"""A web page of present, past and overdue runs: for ``shedlock page``, or to mount in an application.

Needs the extra ``page``. See ``docs/how-to/page.md``.
"""

from __future__ import annotations

try:
    from shedlock_py.page.app import page_app
except ModuleNotFoundError as error:
    if error.name not in ("starlette", "jinja2", "anyio"):
        raise
    raise ModuleNotFoundError(
        f"shedlock_py.page needs the package {error.name!r}: pip install 'shedlock_py[page]'", name=error.name
    ) from error

__all__ = ["page_app"]
