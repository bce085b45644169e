"""The client for threads, over boto3, and code that it shares with the client for asyncio."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from shedlock_py.providers.aws.errors import are_credentials_unknown, code_of
from shedlock_py.providers.aws.place import POOL_SIZE, Place
from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.cas.over_sdk import Exchange, SdkClient
from shedlock_py.providers.kit import NotSent
from shedlock_py.runtime.process import monotonic


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


class _Boto3:
    """boto3, for threads."""

    most_requests = POOL_SIZE

    def __init__(self, place: Place, timeout: float | None) -> None:
        self.shown = place.shown
        self._place = place
        self._timeout = timeout

    def open(self, resources: ExitStack) -> Any:
        session = boto3.Session(profile_name=self._place.profile, region_name=self._place.region)
        client = session.client(**self._place.client_arguments(Config, self._timeout))
        resources.callback(client.close)
        self._place.register_handlers(client)
        return client

    def send(self, client: Any, request: AwsRequest | Sleep) -> AwsReply | None:
        if isinstance(request, Sleep):
            time.sleep(request.seconds)
            return None
        sent_at = monotonic()
        try:
            value = getattr(client, request.method)(**request.arguments)
        except EndpointConnectionError as error:
            raise NotSent from error
        except (BotoCoreError, ClientError) as error:
            return expected_reply(request, error, sent_at)
        if hasattr(body := value.get("Body"), "read"):
            value["Body"] = body.read()
        return reply_of(value, sent_at)

    def is_outdated(self, error: Exception) -> bool:
        return are_credentials_unknown(error)


class AwsClient(SdkClient):
    """A client for threads, over boto3.

    :param timeout: the provider's time limit.
    :param exchange: makes the requests for a command.
    """

    def __init__(self, place: Place, timeout: float | None, exchange: Exchange) -> None:
        super().__init__(_Boto3(place, timeout), exchange)


def expected_reply(request: AwsRequest, error: Exception, sent_at: float) -> AwsReply:
    """Return the error reply as a reply. :raises Exception: ``error``, if the program does not expect it."""
    code = code_of(error)
    if not isinstance(error, ClientError) or code not in request.expected:
        raise error
    return reply_of(error.response, sent_at, code)


def reply_of(value: Mapping[str, Any], sent_at: float, code: str = "") -> AwsReply:
    date = value["ResponseMetadata"]["HTTPHeaders"].get("date")
    return AwsReply(value, ServerTime.from_header(date, sent_at, monotonic()), code)
