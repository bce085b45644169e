"""The sync and the async provider, and the meaning of their errors."""

from __future__ import annotations

from typing import Any

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)

from shedlock_py.model.durations import Duration
from shedlock_py.providers.azblob.azblob_clients import AsyncBlobSdk, BlobSdk
from shedlock_py.providers.azblob.place import Place
from shedlock_py.providers.azblob.wire import Blobs, code_of
from shedlock_py.providers.cas import parse_options
from shedlock_py.providers.cas.objects import AsyncObjectProvider, ObjectPrograms, ObjectProvider
from shedlock_py.providers.cas.over_sdk import AsyncSdkClient, SdkClient
from shedlock_py.providers.kit import Failure

_DENIED = (
    "the role Storage Blob Data Contributor allows all that locks need, a SAS token needs the permissions rcwdl, and "
    "the account's network rules must let this machine in"
)
_HINTS = {
    "ContainerNotFound": "create the container first; shedlock_py creates none",
    "AuthenticationFailed": "check the key, or the SAS token and its end, and the clock of this machine",
    "AuthorizationFailure": _DENIED,
    "AuthorizationPermissionMismatch": _DENIED,
}
_NO_TOKEN = "give the process an identity that DefaultAzureCredential finds, a SAS token or a key"


class AzureBlobPrograms(ObjectPrograms):
    """The programs of an object store, with errors of Azure's SDK."""

    def classify(self, error: Exception) -> Failure:
        match error:
            case ClientAuthenticationError(response=None):  # no request was sent
                return Failure.NOT_DONE if _has_no_token(error) else Failure.REFUSED
            case HttpResponseError(status_code=int(status)) if 400 <= status < 500 and status not in (408, 429):
                return Failure.REFUSED
            case ServiceRequestError() | ServiceResponseError() | OSError():
                return Failure.CONNECTION_LOST
            case AzureError():
                return Failure.UNREACHABLE
        return super().classify(error)

    def text_of(self, error: Exception) -> str:
        """Return the first line of the message. The SDK adds the content of the reply."""
        text = str(getattr(error, "message", error)).partition("\n")[0]
        return f"{code_of(error)}: {text}" if code_of(error) else text

    def hint(self, error: Exception) -> str | None:
        return _NO_TOKEN if _has_no_token(error) else _HINTS.get(code_of(error)) or super().hint(error)


def _has_no_token(error: Exception) -> bool:
    """Return whether the SDK found no token. Its error for a bad key is of a subclass that is not public."""
    return type(error) is ClientAuthenticationError and error.response is None


class AzureBlobLockProvider(ObjectProvider):
    """Locks in a container of Azure Blob Storage.

    A lease that is not released is kept up to ``clock_error`` + 2 s + a round trip longer than ``lock_at_most_for``,
    because the time comes from the ``Date`` header of Azure's replies. See docs/providers/azblob.md.

    :param url: ``azblob://account/container`` or ``azblob://account/container/prefix``. Options: ``account_key`` or
        ``sas_token``, percent-encoded; ``endpoint``, the URL of the account; ``timeout``, ``fire_time_tolerance``,
        ``clock_error``. Without credentials in the URL, ``AZURE_STORAGE_CONNECTION_STRING``, ``AZURE_STORAGE_KEY`` and
        ``AZURE_STORAGE_SAS_TOKEN`` count, or else the SDK's ``DefaultAzureCredential``.
    :param clock_error: the largest difference between the clocks of Azure's servers (default: 1 s).
    :param timeout: the time limit of a whole operation (default: 5 s).
    :param fire_time_tolerance: how far a fire time may be ahead of Azure's clock (default: 5 minutes).
    :raises ConfigurationError: the URL or a variable cannot work.
    """

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        place, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        client = SdkClient(BlobSdk(place, options["timeout"]), Blobs(place.prefix).exchange)
        super().__init__(AzureBlobPrograms(**options), client)


class AsyncAzureBlobLockProvider(AsyncObjectProvider):
    """:class:`AzureBlobLockProvider` for asyncio. Several event loops may use it."""

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        place, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        client = AsyncSdkClient(AsyncBlobSdk(place, options["timeout"]), Blobs(place.prefix).exchange)
        super().__init__(AzureBlobPrograms(**options), client)


def _parsed(
    url: str, clock_error: Duration | None, timeout: Duration | None, tolerance: Duration | None
) -> tuple[Place, dict[str, Any]]:
    url, options = parse_options(url, clock_error, timeout, tolerance)
    place = Place.from_url(url)
    return place, {**options, "passwords": place.passwords, "names": (place.account, place.container)}
