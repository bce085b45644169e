"""Notify the configured listeners."""

from __future__ import annotations

import logging

from shedlock_py.events import DEBUG_EVENTS, Event, log_listener, log_raised, logger
from shedlock_py.runtime.process import is_from_signal
from shedlock_py.settings.defaults import current


def emit(event: Event, *, is_raised: bool = False) -> None:
    """Notify every configured listener. An exception in a listener is logged and changes nothing else.

    The first exception that comes from a signal, such as Ctrl-C or a job's time limit, is raised after all listeners
    were notified.

    :param is_raised: the caller gets the failure as an exception, so the log does not repeat it.
    """
    interruption: BaseException | None = None
    is_logged = not isinstance(event, DEBUG_EVENTS) or logger.isEnabledFor(logging.DEBUG)
    for listener in current.settings.listeners:
        if listener is log_listener and not is_logged:
            continue
        try:
            (log_raised if is_raised and listener is log_listener else listener)(event)
        except BaseException as error:  # even sys.exit(): it must not replace the task's result or exception
            if is_from_signal(error):
                interruption = interruption or error
            else:
                logger.exception("listener %r failed on %r", listener, event)
    if interruption is not None:
        raise interruption
