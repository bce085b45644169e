"""Interference between two threads on a free-threaded Python, where only locks keep them apart."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interleaved(call: Callable[[], object], other: Callable[[], object], number: int) -> bool:
    """Call ``call``, and call ``other`` before its ``number``-th instruction, as a second thread may do there.

    With the GIL, threads take turns only at a few instructions. Return False if ``call`` has fewer instructions.
    """
    instructions = iter(range(number))
    is_called = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal is_called
        frame.f_trace_opcodes = True
        if event == "opcode" and not is_called and next(instructions, None) is None:
            is_called = True
            other()  # Python does not trace this call
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for this when a trace function is set
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return is_called
