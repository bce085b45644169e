"""The sync and the async provider, and the meaning of their errors."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration
from shedlock_py.providers import aws
from shedlock_py.providers.cas import parse_options
from shedlock_py.providers.cas.objects import AsyncObjectProvider, ObjectPrograms, ObjectProvider, checked_prefix
from shedlock_py.providers.kit import Failure
from shedlock_py.providers.s3.wire import NO_BUCKET_HINT, Objects

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")
_FORM = "s3://bucket/prefix?region=eu-west-1"
_DENIED = (
    "the policy must allow s3:GetObject, s3:PutObject and s3:DeleteObject below the prefix, and s3:ListBucket of the "
    "bucket: without it, S3 replies AccessDenied for an object that does not exist"
)
_HINTS = {
    "NoSuchBucket": NO_BUCKET_HINT,
    "404": NO_BUCKET_HINT,
    "AccessDenied": _DENIED,
    "403": _DENIED,
    "NotImplemented": Objects.no_conditions,
    "AuthorizationHeaderMalformed": "the bucket is in another region: set region=… in the URL",
}


class S3Programs(ObjectPrograms):
    """The programs of an object store, with errors of S3 and botocore."""

    def classify(self, error: Exception) -> Failure:
        return aws.classify(error)

    def text_of(self, error: Exception) -> str:
        return aws.text_of(error)

    def hint(self, error: Exception) -> str | None:
        return _HINTS.get(aws.code_of(error)) or aws.hint(error)


class S3LockProvider(ObjectProvider):
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


class AsyncS3LockProvider(AsyncObjectProvider):
    """:class:`S3LockProvider` for asyncio. Several event loops may use it."""

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
    prefix = checked_prefix(path)
    # Services other than Amazon's do not know the checksums that botocore adds by default.
    required = dict.fromkeys(("request_checksum_calculation", "response_checksum_validation"), "when_required")
    handlers = {"request-created.s3.PutObject": _send_at_once}
    place = aws.Place("s3", f"s3://{bucket}/{prefix}", **given, config=required, handlers=handlers)
    return _Parsed(place, Objects(bucket, prefix), options)


def _send_at_once(request: Any, **_: object) -> None:
    """Send content and headers in one packet. botocore would wait until S3 requests the content."""
    del request.headers["Expect"]  # no error if it is absent
    request.data = request.data.read()
