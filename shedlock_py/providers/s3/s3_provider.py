"""The sync and the async provider, and the meaning of their errors."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, NamedTuple

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration
from shedlock_py.providers import aws
from shedlock_py.providers.cas import CasPrograms, parse_options
from shedlock_py.providers.kit import AsyncProgramProvider, Failure, ProgramProvider
from shedlock_py.providers.s3.wire import IgnoredConditionError, NoBucketError, Objects, TryConditions
from shedlock_py.runtime.program import Program

DEFAULT_PREFIX = "shedlock"
LONGEST_PREFIX = 800
"""Bytes. A key may have 1024 bytes, and a lock's name needs up to 205 of them."""
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")
_FORM = "s3://bucket/prefix?region=eu-west-1"
_NO_BUCKET = "create the bucket first, in the region of the URL; shedlock_py creates none"
_NO_CONDITIONS = (
    "locks need a service that honours If-None-Match and If-Match: two holders could have one lock here. "
    "docs/providers/s3.md names such services"
)
_NO_DELETES = "leave old records where they are, or let a lifecycle rule of the bucket delete them"
_DENIED = (
    "the policy must allow s3:GetObject, s3:PutObject and s3:DeleteObject below the prefix, and s3:ListBucket of the "
    "bucket: without it, S3 replies AccessDenied for an object that does not exist"
)
_HINTS = {
    "NoSuchBucket": _NO_BUCKET,
    "404": _NO_BUCKET,
    "AccessDenied": _DENIED,
    "403": _DENIED,
    "NotImplemented": _NO_CONDITIONS,
    "AuthorizationHeaderMalformed": "the bucket is in another region: set region=… in the URL",
}


class S3Programs(CasPrograms):
    """The programs of a compare-and-swap store, with errors of S3 and botocore."""

    def create_schema(self) -> Program[Any, Any, None]:
        """Create nothing, but raise an error if the bucket does not exist or the server ignores conditions."""
        yield TryConditions(of_bucket=True)

    def check_conditions(self) -> Program[Any, Any, None]:
        yield TryConditions()

    def prune(self, unused_for: timedelta, prefix: str = "") -> Program[Any, Any, int]:
        yield TryConditions(of_deletes=True)  # some servers honour conditions only for writes
        return (yield from super().prune(unused_for, prefix))

    def classify(self, error: Exception) -> Failure:
        if isinstance(error, IgnoredConditionError | NoBucketError):
            return Failure.REFUSED
        return aws.classify(error)

    def text_of(self, error: Exception) -> str:
        return aws.text_of(error)

    def hint(self, error: Exception) -> str | None:
        match error:
            case NoBucketError():
                return _NO_BUCKET
            case IgnoredConditionError():
                return _NO_DELETES if "DELETE" in str(error) else _NO_CONDITIONS
        return _HINTS.get(aws.code_of(error)) or aws.hint(error)


class S3LockProvider(ProgramProvider):
    """Locks in a bucket of S3, or of a service with S3's interface and conditional writes.

    A lease that is not released is kept up to ``clock_error`` + 2 s + a round trip longer than ``lock_at_most_for``,
    because the time comes from the ``Date`` header of S3's replies. See docs/providers/s3.md.

    :param url: ``s3://bucket`` or ``s3://bucket/prefix``. Options: ``endpoint``, ``region`` and ``profile``, which
        replace boto3's configuration; ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param clock_error: the largest difference between the clocks of the service's front ends (default: 1 s).
    :param timeout: the time limit of a whole operation (default: 5 s).
    :param fire_time_tolerance: how far a fire time may be ahead of S3's clock (default: 5 minutes).
    :raises ConfigurationError: the URL cannot work.
    """

    programs: S3Programs

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        place, objects, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        super().__init__(S3Programs(**options), aws.AwsClient(place, options["timeout"], objects.exchange))

    def check_conditions(self) -> None:
        """Check that the server honours the conditions of writes. ``create_schema`` and the first acquire do this, too.

        :raises ProviderError: the server ignores conditions.
        """
        self._drive(self.programs.check_conditions(), "check_conditions")


class AsyncS3LockProvider(AsyncProgramProvider):
    """:class:`S3LockProvider` for asyncio. Several event loops may use it."""

    programs: S3Programs

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        from shedlock_py.providers.aws.async_clients import AsyncAwsClient  # imported late: takes a third of a second

        place, objects, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        super().__init__(S3Programs(**options), AsyncAwsClient(place, options["timeout"], objects.exchange))

    async def check_conditions(self) -> None:
        """See :meth:`S3LockProvider.check_conditions`."""
        await self._drive(self.programs.check_conditions(), "check_conditions")


class _Parsed(NamedTuple):
    place: aws.Place
    objects: Objects
    options: dict[str, Any]
    """The options of the programs."""


def _parsed(url: str, clock_error: Duration | None, timeout: Duration | None, tolerance: Duration | None) -> _Parsed:
    url, options = parse_options(url, clock_error, timeout, tolerance)
    bucket, path, given = aws.split_url(url, "s3", _FORM)
    if not _BUCKET.fullmatch(bucket) or "@" in path:  # not quoted: by mistake, it may contain a password
        raise ConfigurationError(f"store URL: not of the form {_FORM}")
    path = path or DEFAULT_PREFIX
    if len(path.encode()) > LONGEST_PREFIX:
        raise ConfigurationError(
            f"store URL: the prefix has {len(path.encode())} bytes; the maximum is {LONGEST_PREFIX}"
        )
    # Services other than Amazon's do not know the checksums that botocore adds by default.
    required = dict.fromkeys(("request_checksum_calculation", "response_checksum_validation"), "when_required")
    handlers = {"request-created.s3.PutObject": _send_at_once}
    place = aws.Place("s3", f"s3://{bucket}/{path}/", **given, config=required, handlers=handlers)
    return _Parsed(place, Objects(bucket, f"{path}/"), options)


def _send_at_once(request: Any, **_: object) -> None:
    """Send content and headers in one packet. botocore would wait until S3 requests the content."""
    del request.headers["Expect"]  # no error if it is absent
    request.data = request.data.read()
