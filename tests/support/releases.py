"""The release of a server that the tests run: the newest, or the release that the environment chooses.

``SHEDLOCK_TEST_POSTGRES=17`` chooses from `PostgresServer.releases`; each product has such a variable. A release is
fetched into the cache (see `fetching`), or ``installed`` on this system in any version.
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
        """Return the words that run this program. :raises MissingError: it is missing."""


@dataclass(frozen=True)
class Installed:
    folders: str = ""
    """A pattern for folders to search before $PATH; PostgreSQL's newest folder comes first."""

    def find(self, program: str) -> list[str]:
        folders = [*sorted(glob.glob(self.folders), reverse=True), os.environ.get("PATH", os.defpath)]
        path = shutil.which(program, path=os.pathsep.join(folders))
        if path is None:
            raise MissingError(f"not installed: {program}")
        return [path]


@dataclass(frozen=True)
class Fetched:
    source: str
    names: Mapping[str, str] = field(default_factory=dict)
    """The product's own names of programs, where they differ."""

    def find(self, program: str) -> list[str]:
        return fetching.command(self.source, self.names.get(program, program))


def chosen(product: str, releases: Mapping[str, Choice]) -> Choice:
    """Return the release that the environment names, or the first. :raises ValueError: this release does not exist."""
    variable = f"SHEDLOCK_TEST_{product.upper()}"
    name = os.environ.get(variable) or next(iter(releases))
    if name not in releases:
        raise ValueError(f"{variable}={name}: choose one of {', '.join(releases)}")
    return releases[name]
