"""SecantusDB with two defects mended, run as a program with the arguments of ``secantusd-py``.

If another client inserts the document between the query and the upsert of a ``findAndModify``, SecantusDB updates the
document and replies ``value: null``, where MongoDB replies with the document. This server then runs the command once
more, and finds the document. The commands of these tests may run twice.

A SecantusDB that is shutting down replies to ``hello`` like a server outside its replica set. A driver that gets such a
reply removes the server from its list for good. MongoDB never sends such a reply; this server closes the connection
instead.
"""

import sys
from typing import Any

from secantus import cli, commands, server  # type: ignore[import-untyped]  # it has no types
from secantus.failpoints import CloseConnectionRequested  # type: ignore[import-untyped]

FIND_AND_MODIFY = "_find_and_modify_impl"  # SecantusDB has no public hook for a command
_find_and_modify = getattr(commands, FIND_AND_MODIFY)
_dispatch = server.dispatch


def find_and_modify(request: dict[str, Any], context: Any) -> Any:
    reply = _find_and_modify(request, context)
    has_lost_race = request.get("upsert") and request.get("new") and reply.get("ok") and reply.get("value") is None
    return _find_and_modify(request, context) if has_lost_race else reply


def dispatch(request: Any, context: Any) -> Any:
    if context.server_address is None:
        raise CloseConnectionRequested
    return _dispatch(request, context)


if __name__ == "__main__":
    setattr(commands, FIND_AND_MODIFY, find_and_modify)
    server.dispatch = dispatch
    sys.exit(cli.main())
