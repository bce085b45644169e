"""The requests for objects of S3, written with ``If-None-Match`` or ``If-Match``.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

from typing import Any

from shedlock_py.providers.aws import AwsReply, AwsRequest
from shedlock_py.providers.cas import objects
from shedlock_py.providers.cas.objects import ObjectReply, Page, Requests
from shedlock_py.providers.kit import ErrorReply

_ABSENT = ("NoSuchKey",)
_REFUSED = "PreconditionFailed"
_NOT_WRITTEN = (_REFUSED, "NoSuchKey", "ConditionalRequestConflict", "OperationAborted")
"""412; 404 for ``If-Match`` if the object is gone; 409 beside another write. After each, the programs read again."""
_NO_BUCKET = ("404", "NoSuchBucket")
NO_BUCKET_HINT = "create the bucket first, in the region of the URL; shedlock_py creates none"


class Objects(objects.Objects):
    """The records under a prefix in a bucket."""

    no_etag = '"00000000000000000000000000000000"'
    no_conditions = (
        "locks need a service that honours If-None-Match and If-Match: two holders could have one lock here. "
        "docs/providers/s3.md names such services"
    )
    no_deletes = "leave old records where they are, or let a lifecycle rule of the bucket delete them"

    def __init__(self, bucket: str, prefix: str) -> None:
        super().__init__(prefix)
        self._bucket = bucket

    def get(self, key: str) -> Requests[ObjectReply]:
        return self._object("get_object", _ABSENT, Key=key)

    def put(self, key: str, content: bytes, if_etag: str | None) -> Requests[ObjectReply]:
        condition = {"IfMatch": if_etag} if if_etag else {"IfNoneMatch": "*"}
        body = {"Body": content, "ContentType": "application/json"}
        return self._object("put_object", _NOT_WRITTEN, Key=key, **body, **condition)

    def delete(self, key: str, if_etag: str) -> Requests[ObjectReply]:
        return self._object("delete_object", _NOT_WRITTEN, Key=key, IfMatch=if_etag)

    def page(self, prefix: str, which: str | None) -> Requests[Page]:
        # A key with another slash belongs to another program with a longer prefix.
        more = {} if which is None else {"ContinuationToken": which}
        reply = yield self._request("list_objects_v2", (), Prefix=prefix, Delimiter="/", **more)
        keys = [found["Key"] for found in reply.value.get("Contents", ())]
        return Page(reply.time, keys, reply.value["NextContinuationToken"] if reply.value.get("IsTruncated") else None)

    def check_bucket(self) -> Requests[None]:
        if (yield self._request("head_bucket", _NO_BUCKET)).code:
            raise ErrorReply(f"there is no bucket {self._bucket!r}", hint=NO_BUCKET_HINT)

    def _object(self, method: str, expected: tuple[str, ...], **arguments: Any) -> Requests[ObjectReply]:
        reply: AwsReply = yield self._request(method, expected, **arguments)
        if reply.code:
            return ObjectReply(reply.time, is_done=False, is_refused=reply.code == _REFUSED)
        etag = "" if method == "delete_object" else reply.value["ETag"]
        return ObjectReply(reply.time, is_done=True, etag=etag, content=reply.value.get("Body", b""))

    def _request(self, method: str, expected: tuple[str, ...], **arguments: Any) -> AwsRequest:
        return AwsRequest(method, {"Bucket": self._bucket, **arguments}, expected)
