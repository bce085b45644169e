"""SecantusDB with a defect mended, run as a program with the arguments of ``secantusd-py``.

If another client inserts the document between the query and the upsert of a ``findAndModify``, SecantusDB updates it
and replies ``value: null``, where MongoDB replies with the document. Here the server then runs the command once more,
and finds the document. The commands of these tests may run twice.
"""

import sys
from typing import Any

from secantus import cli, commands  # type: ignore[import-untyped]  # it has no types

NAME = "_find_and_modify_impl"  # there is no public seam
_find_and_modify = getattr(commands, NAME)


def find_and_modify(request: dict[str, Any], context: Any) -> Any:
    reply = _find_and_modify(request, context)
    has_lost_race = request.get("upsert") and request.get("new") and reply.get("ok") and reply.get("value") is None
    return _find_and_modify(request, context) if has_lost_race else reply


if __name__ == "__main__":
    setattr(commands, NAME, find_and_modify)
    sys.exit(cli.main())
