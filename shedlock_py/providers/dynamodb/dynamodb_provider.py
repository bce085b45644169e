"""The sync and the async provider for DynamoDB."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration
from shedlock_py.providers.aws import AwsClient, Place, split_url
from shedlock_py.providers.cas import parse_options
from shedlock_py.providers.dynamodb.dynamodb_programs import DynamoDBPrograms
from shedlock_py.providers.dynamodb.wire import Table
from shedlock_py.providers.kit import AsyncProgramProvider, ProgramProvider

_FORM = "dynamodb://table?region=eu-west-1"
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")


class DynamoDBLockProvider(ProgramProvider):
    """Locks in an Amazon DynamoDB table, which :meth:`create_schema` creates.

    A lease that is not released is kept up to ``clock_error`` + 2 s + a round trip longer than ``lock_at_most_for``,
    because the time comes from the ``Date`` header of DynamoDB's replies. See docs/providers/dynamodb.md.

    :param url: ``dynamodb://table``. Options: ``region``, ``profile`` and ``endpoint`` (a URL, for DynamoDB Local), by
        default from boto3's configuration, like the credentials; ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param clock_error: the largest difference between the clocks of DynamoDB's servers (default: 1 s).
    :param timeout: the time limit of a whole operation (default: 5 s).
    :param fire_time_tolerance: how far a fire time may be ahead of DynamoDB's clock (default: 5 minutes).
    :raises ConfigurationError: the URL cannot work.
    """

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        table, place, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        client = AwsClient(place, options["timeout"], Table(table).exchange)
        super().__init__(DynamoDBPrograms(table, **options), client)


class AsyncDynamoDBLockProvider(AsyncProgramProvider):
    """:class:`DynamoDBLockProvider` for asyncio. Several event loops may use it."""

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        from shedlock_py.providers.aws.async_clients import AsyncAwsClient  # imported late: takes a third of a second

        table, place, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        client = AsyncAwsClient(place, options["timeout"], Table(table).exchange)
        super().__init__(DynamoDBPrograms(table, **options), client)


class _Parsed(NamedTuple):
    table: str
    place: Place
    options: dict[str, Any]


def _parsed(url: str, clock_error: Duration | None, timeout: Duration | None, tolerance: Duration | None) -> _Parsed:
    url, options = parse_options(url, clock_error, timeout, tolerance)
    table, path, given = split_url(url, "dynamodb", _FORM)
    if path or not _TABLE.fullmatch(table):
        raise ConfigurationError(
            f"store URL: the table's name must be 3 to 255 letters, digits, '_', '.' or '-'. The form is {_FORM}"
        )
    place = Place("dynamodb", f"table {table}", given.get("region"), given.get("profile"), given.get("endpoint"))
    return _Parsed(table, place, options)
