"""The client for threads, over boto3, and code that it shares with the client for asyncio."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from shedlock_py.providers.aws.errors import are_credentials_unknown, code_of
from shedlock_py.providers.aws.place import POOL_SIZE, Place
from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.kit import NotSent, TimedOut, call_within
from shedlock_py.runtime.process import PerProcess, monotonic
from shedlock_py.runtime.program import Program, drive
from shedlock_py.runtime.threads import WorkerPool

A_REPLY = "a reply"


@dataclass(frozen=True, slots=True)
class AwsRequest:
    """A request: a call of a method of boto3's client.

    :ivar method: name of the method, such as ``"update_item"``.
    :ivar expected: codes of error replies for the program, such as ``"ConditionalCheckFailedException"``. Other error
        replies raise botocore's ``ClientError``.
    """

    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    expected: tuple[str, ...] = ()


class AwsReply(NamedTuple):
    """The result of boto3, or the content of an expected error reply. A ``Body`` is read: it is ``bytes``.

    :ivar code: the code of an expected error reply. Empty after a success.
    """

    value: Mapping[str, Any]
    time: ServerTime
    code: str = ""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait until the service has done something. This has no reply."""

    seconds: float


Exchange = Callable[[Any], Program[AwsRequest | Sleep, Any, Any]]
"""Makes the requests for a command of the programs, and the command's reply from their replies."""


class Sending:
    """Whether a request may have been sent, for the error after the time limit."""

    def __init__(self, timeout: float | None) -> None:
        self._until = None if timeout is None else monotonic() + timeout
        self.has_begun = False

    def begin(self) -> None:
        """Call it before a request. :raises TimedOut: the time is over, so nothing may be sent."""
        self.has_begun = True
        if self._until is not None and monotonic() >= self._until:
            raise TimedOut(A_REPLY, sent=False)


class _Threads:
    """The client of one process. boto3 takes a tenth of a second to create it, and longer to find credentials."""

    def __init__(self, place: Place, timeout: float | None) -> None:
        self.workers = WorkerPool(POOL_SIZE, f"shedlock-{place.service}")
        self._place = place
        self._timeout = timeout
        self._mutex = threading.Lock()  # used only in worker threads, which signal handlers do not interrupt
        self._client: Any = None
        self._closing: Any = None

    def client(self) -> Any:
        with self._mutex:
            if self._client is None:
                session = boto3.Session(profile_name=self._place.profile, region_name=self._place.region)
                client = session.client(**self._place.client_arguments(Config, self._timeout))
                self._place.register_handlers(client)
                self._client = client
                # For a provider that is never closed. At the end of the process, the system closes the connections.
                self._closing = finalize(self, self._client.close)
                self._closing.atexit = False
            return self._client

    def forget(self, client: Any) -> None:
        """Create a new client for the next request. It finds new credentials: boto3 keeps the first that it found.

        Other threads may still use the old client, so it is not closed but garbage-collected.
        """
        with self._mutex:
            if self._client is client:
                self._client = None
                self._closing.detach()

    def close(self) -> None:
        client = self._client
        if client is not None:
            client.close()


class AwsClient:
    """A client for threads. A worker thread executes each command, so that one time limit covers all of it.

    :param timeout: the provider's time limit.
    :param exchange: makes the requests for a command.
    """

    def __init__(self, place: Place, timeout: float | None, exchange: Exchange) -> None:
        self.shown = place.shown
        self._exchange = exchange
        self._of_process = PerProcess(partial(_Threads, place, timeout))

    def execute(self, command: Any, timeout: float | None) -> Any:
        mine, sending = self._of_process.get(), Sending(timeout)

        def send(request: AwsRequest | Sleep) -> AwsReply | None:
            if isinstance(request, Sleep):
                time.sleep(request.seconds)
                return None
            client = mine.client()
            sending.begin()
            sent_at = monotonic()
            try:
                value = getattr(client, request.method)(**request.arguments)
            except EndpointConnectionError as error:
                raise NotSent from error
            except (BotoCoreError, ClientError) as error:
                if are_credentials_unknown(error):
                    mine.forget(client)
                return expected_reply(request, error, sent_at)
            if hasattr(body := value.get("Body"), "read"):
                value["Body"] = body.read()
            return reply_of(value, sent_at)

        work = partial(drive, self._exchange(command), send)
        try:
            return call_within(mine.workers, timeout, A_REPLY, work)
        except TimedOut as error:
            raise TimedOut(error.waiting_for, sent=sending.has_begun) from error.__cause__

    def close(self) -> None:
        mine = self._of_process.pop()
        if mine is not None:
            mine.close()


def expected_reply(request: AwsRequest, error: Exception, sent_at: float) -> AwsReply:
    """Return the error reply as a reply. :raises Exception: ``error``, if the program does not expect it."""
    code = code_of(error)
    if not isinstance(error, ClientError) or code not in request.expected:
        raise error
    return reply_of(error.response, sent_at, code)


def reply_of(value: Mapping[str, Any], sent_at: float, code: str = "") -> AwsReply:
    date = value["ResponseMetadata"]["HTTPHeaders"].get("date")
    return AwsReply(value, ServerTime.from_header(date, sent_at, monotonic()), code)
