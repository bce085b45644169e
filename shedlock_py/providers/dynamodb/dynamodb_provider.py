"""The sync and the async provider for DynamoDB."""

from __future__ import annotations

import re
from typing import Unpack

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.aws import AwsClient, Place, split_url
from shedlock_py.providers.cas import parse_options
from shedlock_py.providers.cas.options import CasOptions
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
    :param options: ``clock_error``, the largest difference between the clocks of DynamoDB's servers (default: 1 s);
        ``timeout``, the time limit of a whole operation (default: 5 s); ``fire_time_tolerance``, how far a fire time
        may be ahead of DynamoDB's clock (default: 5 minutes).
    :raises ConfigurationError: the URL cannot work.
    """

    def __init__(self, url: str, **options: Unpack[CasOptions]) -> None:
        table, place, programs = _parsed(url, options)
        super().__init__(programs, AwsClient(place, programs.timeout, table.exchange))


class AsyncDynamoDBLockProvider(AsyncProgramProvider):
    """:class:`DynamoDBLockProvider` for asyncio. Several event loops may use it."""

    def __init__(self, url: str, **options: Unpack[CasOptions]) -> None:
        from shedlock_py.providers.aws.async_clients import AsyncAwsClient  # imported late: takes a third of a second

        table, place, programs = _parsed(url, options)
        super().__init__(programs, AsyncAwsClient(place, programs.timeout, table.exchange))


def _parsed(url: str, given: CasOptions) -> tuple[Table, Place, DynamoDBPrograms]:
    url, options = parse_options(url, **given)
    table, path, of_place = split_url(url, "dynamodb", _FORM)
    if path or not _TABLE.fullmatch(table):
        raise ConfigurationError(
            f"store URL: the table's name must be 3 to 255 letters, digits, '_', '.' or '-'. The form is {_FORM}"
        )
    place = Place(
        "dynamodb", f"table {table}", of_place.get("region"), of_place.get("profile"), of_place.get("endpoint")
    )
    return Table(table), place, DynamoDBPrograms(table, **options)
