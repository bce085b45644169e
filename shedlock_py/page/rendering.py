"""Render templates to HTML. All values in a template are escaped."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

STATIC = {"page.css": "text/css", "page.js": "text/javascript", "favicon.svg": "image/svg+xml"}
"""The static files, with their media types."""


@cache
def environment() -> Environment:
    found = Environment(
        loader=PackageLoader("shedlock_py.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["query"] = lambda value: quote(str(value), safe="", errors="replace")
    found.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return found


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(values)


def static_text(name: str) -> str:
    return files("shedlock_py.page").joinpath("static", name).read_text()
