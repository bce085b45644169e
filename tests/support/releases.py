"""Which release of a server the tests run: the newest, or another one that the environment chooses.

``SHEDLOCK_TEST_POSTGRES=17`` chooses one of `PostgresServer.releases`, and so on for each product. A release is fetched
into the cache (see `fetching`), or ``installed`` on this system in whichever version.
"""

import glob
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tests.support import fetching
from tests.support.fetching import MissingError

Choice = TypeVar("Choice")


class Release(Protocol):
    def find(self, program: str) -> list[str]:
        """The words that run this program. :raises MissingError: it is missing."""


@dataclass(frozen=True)
class Installed:
    folders: str = ""
    """A pattern: where to look before $PATH; the newest of PostgreSQL's folders first."""

    def find(self, program: str) -> list[str]:
        folders = [*sorted(glob.glob(self.folders), reverse=True), os.environ.get("PATH", os.defpath)]
        path = shutil.which(program, path=os.pathsep.join(folders))
        if path is None:
            raise MissingError(f"not installed: {program}")
        return [path]


@dataclass(frozen=True)
class Fetched:
    source: str
    """One of `fetching.SOURCES`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the product calls a program, where that has another name."""

    def find(self, program: str) -> list[str]:
        return fetching.command(self.source, self.names.get(program, program))


def chosen(product: str, releases: Mapping[str, Choice]) -> Choice:
    """The release that the environment names, or the first. :raises ValueError: there is no such release."""
    variable = f"SHEDLOCK_TEST_{product.upper()}"
    name = os.environ.get(variable) or next(iter(releases))
    if name not in releases:
        raise ValueError(f"{variable}={name}: choose one of {', '.join(releases)}")
    return releases[name]
