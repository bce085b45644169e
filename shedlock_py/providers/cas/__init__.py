"""Compare-and-swap stores read a versioned record, and write it only if the version still matches. Public.

A store supplies a client for four commands, and the meaning of its errors. :class:`CasPrograms` is the algorithm, on
top of :mod:`shedlock_py.providers.kit`.
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
