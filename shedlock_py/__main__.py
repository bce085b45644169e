"""``python -m shedlock_py`` and ``shedlock``: the command line, if its extra is installed."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from shedlock_py.cli.app import shedlock
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(
            f"shedlock: the command line needs the package {error.name!r}: pip install 'shedlock_py[cli]'",
            file=sys.stderr,
        )
        sys.exit(78)  # as CONFIG in cli/common.py, which needs them
    shedlock()


if __name__ == "__main__":
    main()
