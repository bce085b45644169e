"""``python -m shedlock_py`` and ``shedlock``: the command line, if its extra is installed."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from shedlock_py.errors import ConfigurationError
from shedlock_py.runtime.versions import require

CONFIG = 78
"""The exit code of the same name in ``cli/common.py``, which needs the packages."""


def main() -> None:
    # Imports leave next to no garbage, but the collector would traverse all that they make, again and again.
    # `open_store` switches it on.
    gc.disable()
    try:
        with suppress(PackageNotFoundError):  # not installed, or frozen into one file with the application
            require("click", version("click"))
        from shedlock_py.cli.app import shedlock

        shedlock()
    except ConfigurationError as error:
        print(f"shedlock: {error}", file=sys.stderr)
        sys.exit(CONFIG)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(
            f"shedlock: the command line needs the package {error.name!r}: pip install 'shedlock_py[cli]'",
            file=sys.stderr,
        )
        sys.exit(CONFIG)


if __name__ == "__main__":
    main()
