"""The requests for blobs, written with ``If-None-Match`` or ``If-Match``.

https://learn.microsoft.com/rest/api/storageservices/specifying-conditional-headers-for-blob-service-operations
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from azure.core import MatchConditions
from azure.storage.blob import ContentSettings

from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.cas.objects import ObjectReply, Objects, Page, Requests

DOWNLOAD, LIST = "download_blob", "walk_blobs"
_REFUSED = ("ConditionNotMet", "BlobAlreadyExists")
NOT_DONE = (*_REFUSED, "BlobNotFound")
"""Error replies that programs expect. A list never gets them."""
_JSON = ContentSettings(content_type="application/json")


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """A request: a call of a method of the SDK's ``ContainerClient``."""

    method: str
    arguments: Mapping[str, Any]


class BlobReply(NamedTuple):
    """The reply to a request.

    :ivar code: the code of an error reply that means "not done". Empty after a success.
    :ivar value: the content of a blob, or the names in a list.
    """

    time: ServerTime
    etag: str
    code: str
    value: Any


class Blobs(Objects):
    """The records under a prefix in a container."""

    no_etag = '"0x0"'
    no_conditions = no_deletes = "this endpoint is not Azure's: two holders could have one lock here"

    def get(self, key: str) -> Requests[ObjectReply]:
        return _blob(DOWNLOAD, blob=key)

    def put(self, key: str, content: bytes, if_etag: str | None) -> Requests[ObjectReply]:
        condition = {"overwrite": True, **_if_match(if_etag)} if if_etag else {}  # otherwise: If-None-Match: *
        return _blob("upload_blob", name=key, data=content, content_settings=_JSON, **condition)

    def delete(self, key: str, if_etag: str) -> Requests[ObjectReply]:
        return _blob("delete_blob", blob=key, **_if_match(if_etag))

    def page(self, prefix: str, which: str | None) -> Requests[Page]:
        # A name with another slash belongs to another program with a longer prefix.
        reply: BlobReply = yield BlobRequest(LIST, {"name_starts_with": prefix, "delimiter": "/"})
        return Page(reply.time, reply.value, next=None)  # the SDK reads all pages


def _if_match(etag: str) -> dict[str, Any]:
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}


def _blob(method: str, **arguments: Any) -> Requests[ObjectReply]:
    reply: BlobReply = yield BlobRequest(method, arguments)
    is_done = not reply.code
    return ObjectReply(reply.time, is_done, reply.code in _REFUSED, reply.etag, reply.value if is_done else b"")


def code_of(error: Exception) -> str:
    """Return the code of an error reply, or an empty text for other errors."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")
