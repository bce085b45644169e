"""Programs: an algorithm as a generator of commands, written once for sync and async code.

A program yields commands (for SQL, a statement with its parameters) and receives the replies. It makes every decision
and does no I/O; the drivers below do. Every exception of a command is thrown *into* the program, including Ctrl-C and
cancellation: only the program knows what to undo before the exception continues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from shedlock_py.errors import hidden_frames

__tracebackhide__ = hidden_frames
Command = TypeVar("Command")
Reply = TypeVar("Reply")
Result = TypeVar("Result")

Program = Generator[Command, Reply, Result]


def drive(program: Program[Command, Reply, Result], execute: Callable[[Command], Reply]) -> Result:
    """Carry out ``program``, command by command."""
    try:
        command = next(program)
        while True:
            try:
                reply = execute(command)
            except BaseException as error:
                command = program.throw(error)
            else:
                command = program.send(reply)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    except BaseException:
        program.close()
        raise


async def drive_async(
    program: Program[Command, Reply, Result], execute: Callable[[Command], Awaitable[Reply]]
) -> Result:
    """Carry out ``program`` like :func:`drive`, and await each command."""
    try:
        command = next(program)
        while True:
            try:
                reply = await execute(command)
            except BaseException as error:
                command = program.throw(error)
            else:
                command = program.send(reply)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    except BaseException:
        program.close()
        raise
