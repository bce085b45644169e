"""Compare-and-swap stores: those that read a versioned record, and write it if the version still matches. Public.

A store supplies a client that carries four commands out, and what its errors mean; the algorithm is
:class:`CasPrograms`, on top of :mod:`shedlock_py.providers.kit`.
"""

from shedlock_py.providers.cas.cas_programs import CasCommand, CasPrograms, CasReply, Delete, Entry, List, Read, Write
from shedlock_py.providers.cas.options import DEFAULT_CLOCK_ERROR, parse_options
from shedlock_py.providers.cas.server_time import OtherReplyError, ServerTime, UnknownTimeError

__all__ = [
    "DEFAULT_CLOCK_ERROR",
    "CasCommand",
    "CasPrograms",
    "CasReply",
    "Delete",
    "Entry",
    "List",
    "OtherReplyError",
    "Read",
    "ServerTime",
    "UnknownTimeError",
    "Write",
    "parse_options",
]
