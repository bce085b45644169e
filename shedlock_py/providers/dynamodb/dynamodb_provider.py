"""The two providers."""

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
    """Locks in a table of Amazon DynamoDB, which :meth:`create_schema` creates.

    A lease that is not released is kept up to ``clock_error`` + 2 s + a round trip longer than ``lock_at_most_for``,
    because DynamoDB's time is that of the ``Date`` header of its replies. See docs/providers/dynamodb.md.

    :param url: ``dynamodb://table``. Options: ``region``, ``profile``, ``endpoint`` (a URL, for DynamoDB Local), each
        from boto3's own configuration by default, as are the credentials; ``timeout``, ``fire_time_tolerance``,
        ``clock_error``.
    :param clock_error: how far the clocks of DynamoDB's servers may differ; 1 s by default.
    :param timeout: how long an operation may take in all; 5 s by default.
    :param fire_time_tolerance: how far a fire time may lie in the future of DynamoDB's clock; 5 minutes by default.
    :raises ConfigurationError: a URL that cannot work.
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
    """:class:`DynamoDBLockProvider` for asyncio. It may be used from several event loops."""

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        from shedlock_py.providers.aws.async_clients import AsyncAwsClient  # late: a third of a second

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
