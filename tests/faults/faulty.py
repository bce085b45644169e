"""A proxy for one worker, which cuts one direction or both, and delays what it passes."""

from __future__ import annotations

import random
import threading
import time

from shedlock_py.testing.proxy import TcpProxy, _Link
from tests.support.database import Address

Delay = tuple[float, float]
NO_DELAY: Delay = (0.0, 0.0)


class FaultyProxy(TcpProxy):
    def __init__(self, upstream: Address, seed: int = 0) -> None:
        self._delays = {True: NO_DELAY, False: NO_DELAY}
        self._held = {True: False, False: False}
        self._random = random.Random(seed)
        self._direction = threading.Condition()
        super().__init__(upstream)

    def delay(self, *, to_server: Delay = NO_DELAY, to_client: Delay = NO_DELAY) -> None:
        """Hold back whatever is sent by a time between the two, in seconds; later chunks wait for earlier ones."""
        self._delays = {True: to_server, False: to_client}

    def hold_back(self, *, to_server: bool, to_client: bool) -> None:
        """Let nothing pass in these directions until :meth:`let_pass`; connections stay open, nothing is lost."""
        with self._direction:
            self._held = {True: to_server, False: to_client}

    def let_pass(self) -> None:
        with self._direction:
            self._held = {True: False, False: False}
            self._direction.notify_all()

    def cut(self) -> None:
        super().cut()
        with self._direction:
            self._direction.notify_all()

    def _may_pass(self, link: _Link, chunk: bytes, *, to_server: bool) -> bool:
        low, high = self._delays[to_server]
        if high and chunk:
            time.sleep(self._random.uniform(low, high))
        with self._direction:
            self._direction.wait_for(lambda: not self._held[to_server] or link.is_cut)
        return super()._may_pass(link, chunk, to_server=to_server)
