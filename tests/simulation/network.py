"""The network between the processes and the store, with its faults.

Each message has its own dice, from the seed of its sender and its number. So messages that meet no fault keep their
delay when a fault is dropped from the schedule.
the same delay when a fault is dropped from the schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shedlock_py.providers.kit import Failure, TimedOut
from tests.simulation.dice import Dice
from tests.simulation.log import Recorder
from tests.simulation.schedule import EVERY_NODE, Fault
from tests.simulation.world import Process, Signal, World

if TYPE_CHECKING:
    from tests.simulation.backends import Backend

QUICK = 0.003
"""Longest delay of a message on a network without faults, in seconds."""
SLOW = 8.0
"""Longest delay of a message during the fault "slow", in seconds."""
LATEST = 600.0
"""Longest delay of the second copy of a request, in seconds."""
FIRST_LATE = 0.01
LONGEST_EXTRA = 4.5
_ERRORS = (Failure.REFUSED, Failure.CONFLICT, Failure.NOT_DONE, Failure.SESSION_CLOSED)
LEVELS = ("loss", "slow", "duplicate", "repeat", "break", "error")


class NetworkError(Exception):
    """A driver's error. ``failure`` is its classification by the store's programs."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.name)
        self.failure = failure


class Server:
    """The server of the store. It carries out commands, unless it is away, at the time of its own clock."""

    def __init__(self, world: World, backend: Backend) -> None:
        self.world = world
        self.backend = backend
        self._jumped = 0
        self.is_down_until = 0.0
        self.stalls_until = 0.0

    def now(self) -> int:
        """The store's clock, in microseconds since 1970."""
        return 1_800_000_000_000_000 + round(self.world.now * 1_000_000) + self._jumped

    def jump(self, seconds: float) -> None:
        self._jumped += round(seconds * 1_000_000)

    def execute(self, command: Any) -> Any:
        return self.backend.execute(command, self.now())


class Link:
    """The faults of the messages of one process."""

    __slots__ = ("break_", "cut_until", "cuts", "duplicate", "error", "extra", "holds", "loss", "repeat", "slow")

    def __init__(self) -> None:
        self.loss = self.slow = self.duplicate = self.repeat = self.break_ = self.error = 0.0
        self.cut_until = 0.0
        self.extra = 0.0
        """Extra delay of the next request."""
        self.cuts = "both"
        self.holds = False


class Network:
    """Carries requests to the server and replies back."""

    def __init__(self, world: World, server: Server, recorder: Recorder, *, recognises_retries: bool) -> None:
        """:param recognises_retries: from the store's programs."""
        self.recognises_retries = recognises_retries
        self.world = world
        self.server = server
        self.recorder = recorder
        self._links: dict[int, Link] = {}
        self._numbers: dict[int, int] = {}
        self.counts = world.log.counts
        self.jumps: list[Fault] = []
        """Jumps of the store's clock that wait for the next request for a lock."""
        self.between_jumps = 0.0
        """Seconds: a jump is left out if it comes sooner after the last jump."""
        self._jumped_at = float("-inf")

    def link(self, process: Process) -> Link:
        return self._links.setdefault(process.number, Link())

    def claims(self, process: Process) -> None:
        """Note that a process will acquire a lock. A waiting jump of the clock happens before the request arrives."""
        if self.jumps:
            fault = self.jumps.pop(0)
            delay = min(fault.length, LONGEST_EXTRA)
            self.link(process).extra = delay
            self.counts["jump before a claim"] += 1
            self.world.at(self.world.now + delay * 0.99, self.jump, fault.size)

    def jump(self, seconds: float) -> None:
        """Make the store's clock jump."""
        if self.world.now >= self._jumped_at + self.between_jumps:
            self._jumped_at = self.world.now
            self.server.jump(seconds)

    def links(self, node: int) -> list[Link]:
        """Return the links of the node with that number, or of all nodes."""
        if node == EVERY_NODE:
            return list(self._links.values())
        return [self._links[node]] if node in self._links else []

    async def request(self, process: Process, command: Any, seconds: float | None, operation: int) -> Any:
        """Return the store's reply, within ``seconds`` of the process's clock.

        :param operation: the number of the recorded operation that sends it; negative: of the operation that it undoes.
        """
        world, link, signal = self.world, self.link(process), Signal()
        number = self._numbers[process.number] = self._numbers.get(process.number, 0) + 1
        dice = Dice(process.seed ^ 0x5EED, number)
        self.recorder.sent(operation)
        message = _Message(self, process, link, command, signal, dice, operation)
        if seconds is not None:
            process.call_at(process.clock() + seconds, message.time_out)
        now = world.now
        delay = message.delay() + link.extra
        link.extra = 0.0
        if process.doom is not None:
            world.at(now + 2 * QUICK * dice(), process.doom)
            process.doom = None
        if now < self.server.is_down_until:
            self.counts["refused"] += 1
            world.at(now + delay, signal.fail, NetworkError(Failure.NOT_DONE), process=process)
        elif now < link.cut_until and link.cuts != "replies":
            self.counts["cut"] += 1
            if link.holds:
                world.at(link.cut_until + delay, message.arrive)
        elif dice() < link.loss:
            self.counts["lost request"] += 1
        else:
            world.at(now + delay, message.arrive)
        self._disturb(message, link, dice)
        return await signal

    def _disturb(self, message: _Message, link: Link, dice: Dice) -> None:
        now, world = self.world.now, self.world
        breaks, doubles, fails = dice(), dice(), dice()
        if fails < link.error:
            # The store does nothing, and replies with one of several errors.
            self.counts["replied with an error"] += 1
            failure = _ERRORS[int(dice() * len(_ERRORS))]
            message.refuse()
            world.at(now + dice() * QUICK, message.signal.fail, NetworkError(failure), process=message.process)
            return
        if breaks < link.break_:
            # Before or after the request was carried out. Messages under way may still arrive.
            self.counts["broken"] += 1
            error = NetworkError(Failure.CONNECTION_LOST)
            world.at(now + dice() * 4 * QUICK, message.signal.fail, error, process=message.process)
        if doubles < max(link.duplicate, link.repeat):
            self.counts["duplicated"] += 1
            late = FIRST_LATE * (LATEST / FIRST_LATE) ** dice()
            world.at(now + late, message.arrive if doubles < link.repeat else message.arrive_again)


class _Message:
    """A request, and its reply."""

    __slots__ = (
        "_command", "_dice", "_is_refused", "_life", "_link", "_network", "_operation", "_sent_at", "process", "signal",
    )  # fmt: skip

    def __init__(
        self,
        network: Network,
        process: Process,
        link: Link,
        command: Any,
        signal: Signal,
        dice: Dice,
        operation: int,
    ) -> None:
        self._network = network
        self._operation = operation
        self._is_refused = False
        self.process = process
        self._life = process.life
        self._sent_at = process.clock()
        self._link = link
        self._command = command
        self.signal = signal
        self._dice = dice

    def delay(self) -> float:
        dice, link = self._dice, self._link
        quick = QUICK * dice()
        return quick + SLOW * dice() * dice() if link.slow and dice() < link.slow else quick

    def refuse(self) -> None:
        """Arrive at a store that does not carry it out."""
        self._is_refused = True

    def time_out(self) -> None:
        if not self.signal.is_done:
            self._network.counts["timed out"] += 1
            self.signal.fail(TimedOut("a reply", sent=True))

    def arrive_again(self) -> None:
        """Let a second copy reach the store.

        A network does not deliver a message twice. A driver sends the command again because the connection broke. If
        the driver does so by itself, the program does not know of the first copy. On a store that does not recognise
        retries, no driver does that; see the kind "repeating drivers".
        """
        if not self._is_confirmed_extension():
            self._arrive(self.arrive_again)

    def _is_confirmed_extension(self) -> bool:
        signal, network = self.signal, self._network
        is_confirmed = signal.is_done and signal.error is None and signal.value is not None
        return is_confirmed and not network.recognises_retries and network.recorder.kind(self._operation) == "extend"

    def _reply(self, carried_out_at: float, reply: Any) -> None:
        if not self.signal.is_done:
            self._network.recorder.replied(self._operation, carried_out_at)
            self.signal.set(self._network.server.backend.received(reply, self._sent_at, self.process.clock()))

    def arrive(self) -> None:
        """Arrive at the store."""
        self._arrive(self.arrive)

    def _arrive(self, later: Callable[[], None]) -> None:
        """:param later: called when a stall is over."""
        network, world, link = self._network, self._network.world, self._link
        server, now = network.server, world.now
        if self._is_refused:
            return
        if now < server.stalls_until or now < server.is_down_until:
            if now < server.stalls_until:
                world.at(server.stalls_until + QUICK * self._dice(), later)
            return
        is_late = self.signal.is_done or self.process.life != self._life
        if is_late:
            network.counts["late request"] += 1
        error, reply = None, None
        try:
            reply = server.execute(self._command)
        except Exception as raised:
            error = raised
        has_changed = error is not None or server.backend.has_changed(self._command, reply)
        if self._operation < 0:
            network.recorder.undo_arrived(-self._operation, now, has_changed=has_changed)
        elif has_changed:
            network.recorder.arrived(self._operation, now)
        if is_late:
            return
        delay = self.delay()
        if now < link.cut_until and link.cuts != "requests":
            network.counts["cut"] += 1
            if not link.holds:
                return
            delay += link.cut_until - now
        elif self._dice() < link.loss:
            network.counts["lost reply"] += 1
            return
        if error is None:
            world.at(now + delay, self._reply, now, reply, process=self.process)
        else:
            world.at(now + delay, self.signal.fail, error, process=self.process)
