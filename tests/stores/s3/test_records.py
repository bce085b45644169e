"""The objects: their content, their keys, and objects that are not records."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shedlock_py import ConfigurationError, LockProvider, LockRecord, LockRequest, ProviderError, provider_from_url
from shedlock_py.providers.aws import AwsReply, AwsRequest
from shedlock_py.providers.cas import CasReply, List, Read, ServerTime, Write
from shedlock_py.providers.cas.objects import TryConditions
from shedlock_py.providers.kit import ErrorReply
from shedlock_py.providers.s3 import S3LockProvider
from shedlock_py.providers.s3.wire import Objects
from tests.support import tiers
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of
from tests.support.s3 import S3Server

NOW = datetime(2026, 11, 23, tzinfo=UTC)
RECORD = LockRecord("job", "host:1#a", NOW, NOW, 7, None, read_at=NOW)
TIME = ServerTime(NOW, 0.0, 0.0)


def test_i2_the_same_record_again_is_another_version(s3_server: S3Server, prefix: str) -> None:
    """An ETag is a digest of the content. A late copy must not meet its old version again."""
    provider = S3LockProvider(s3_server.url(prefix=prefix))

    def write(version: Any) -> Generator[Any, Any, Any]:
        return (yield Write(RECORD, version)).value

    versions = [provider._drive(write(None))]
    for _ in range(3):
        versions.append(provider._drive(write(versions[-1])))
    assert None not in versions
    assert len(set(versions)) == 4
    assert [provider._drive(write(version)) for version in (None, *versions[:-1])] == [None] * 4
    provider.close()


def test_an_object_has_the_fields_of_the_documentation(
    provider: LockProvider, s3_server: S3Server, prefix: str
) -> None:
    lease = acquired(provider, "job", holder="web-1")

    def content() -> tuple[dict[str, Any], str]:
        with s3_server.client() as client:
            found = client.get_object(Bucket=s3_server.bucket, Key=f"{prefix}/job.json")
            return json.loads(found["Body"].read()), found["ContentType"]

    fields, kind = content()
    assert (set(fields), kind) == (
        {"name", "lock_until", "locked_at", "locked_by", "fencing_token", "last_fire_time", "is_released", "write"},
        "application/json",
    )
    assert (fields["name"], fields["locked_by"], fields["fencing_token"]) == (
        "job",
        lease.locked_by,
        lease.fencing_token,
    )
    provider.release(lease)
    assert content()[0]["free"] is True


KEYS = [
    ("nightly-report", "nightly-report"),
    ("reports/nightly 1", "reports!2Fnightly!201"),
    ("..", ".."),
    ("~!%", "!7E!21!25"),
    ("é", "!C3!A9"),
]


def test_the_key_of_a_name_is_plain_ascii(provider: LockProvider, s3_server: S3Server, prefix: str) -> None:
    for name, key in KEYS:
        acquired(provider, name)
        assert s3_server.keys(prefix) == [f"{prefix}/{key}.json"]
        assert [record.name for record in provider.records()] == [name]
        assert [record.name for record in provider.records(name[:1])] == [name]
        s3_server.delete_all(f"{prefix}/")


@given(name=st.text(min_size=1, max_size=64), start=st.integers(0, 64))
def test_keys_are_plain_short_and_apart(name: str, start: int) -> None:
    def requested(command: Any) -> Any:
        return next(Objects("bucket", "p/").exchange(command)).arguments

    key = requested(Read(name))["Key"]
    assert re.fullmatch(r"p/[A-Za-z0-9!._-]{1,200}\.json", key)
    assert key.startswith(requested(List(name[:start]))["Prefix"])
    assert requested(Read(name + "!"))["Key"] != key
    assert requested(Read(name.swapcase() if name.swapcase() != name else f"{name}a"))["Key"] != key


def test_long_names_have_short_keys(provider: LockProvider, s3_server: S3Server, prefix: str) -> None:
    names = sorted(f"{'🔒' * 60}{end}" for end in ("a", "b"))
    for name in names:
        acquired(provider, name)
    assert {len(key) - len(prefix) for key in s3_server.keys(prefix)} == {len("/.json") + 200}
    assert [record.name for record in provider.records("🔒" * 59)] == names
    assert [record.name for record in provider.records("🔒" * 60 + "b")] == names[1:]


@pytest.mark.slow("opens three providers; the names of the contract are apart by prefixes, too")
def test_prefixes_have_records_of_their_own(s3_server: S3Server, prefix: str) -> None:
    """One prefix is below another, and one begins with another."""
    providers = [S3LockProvider(s3_server.url(prefix=place)) for place in (prefix, f"{prefix}/b", f"{prefix}b")]
    for number, provider in enumerate(providers):
        acquired(provider, "job")
        acquired(provider, f"only-{number}")
    for number, provider in enumerate(providers):
        assert [record.name for record in provider.records()] == ["job", f"only-{number}"]
        provider.close()


def content(name: object) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": name, "write": "1", "locked_by": "a#b", "locked_at": NOW.isoformat()}
    fields |= {"lock_until": NOW.isoformat(), "fencing_token": 7, "last_fire_time": None}
    return {"Body": json.dumps(fields).encode(), "ETag": f"etag of {name}"}


ODD = [
    *(b"", b"hello", b"[]", b"{}", b'{"name": "job", "write": "x"}', b"\xff"),
    *(content(name)["Body"] for name in (5, None, ["job"], "\udc80")),
    b"[" * 9999,
]


def test_i5_an_object_that_is_no_record_is_refused_and_hides_no_other(
    provider: LockProvider, s3_server: S3Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    acquired(provider, "another")
    with s3_server.client() as client:
        for body in ODD if tiers.runs("full") else ODD[::3]:
            caplog.clear()
            client.put_object(Bucket=s3_server.bucket, Key=f"{prefix}/job.json", Body=body)
            with pytest.raises(ProviderError):
                provider.acquire(LockRequest("job", "1m"))
            assert [record.name for record in provider.records()] == ["another"]
            assert warnings_of(caplog, f"the object '{prefix}/job.json' is left out")
            provider.prune("1h")
            assert record_of(provider, "another").is_held
        client.delete_object(Bucket=s3_server.bucket, Key=f"{prefix}/job.json")
    acquired(provider, "job")


def test_i2_the_object_of_another_lock_is_refused(provider: LockProvider, s3_server: S3Server, prefix: str) -> None:
    """Somebody may have copied it by hand. A force release of one lock would free the other lock."""
    acquired(provider, "job")
    with s3_server.client() as client:
        source = {"Bucket": s3_server.bucket, "Key": f"{prefix}/job.json"}
        client.copy_object(Bucket=s3_server.bucket, Key=f"{prefix}/another.json", CopySource=source)
    with pytest.raises(
        ProviderError, match=f"{prefix}/another.json is the lock 'job', whose object is {prefix}/job.json"
    ):
        provider.force_release("another")
    assert [record.name for record in provider.records()] == ["job"]
    assert record_of(provider, "job").is_held


def test_a_deletion_by_hand_frees_the_lock(provider: LockProvider, s3_server: S3Server, prefix: str) -> None:
    lease = acquired(provider, "job", "1h")
    s3_server.delete_all(f"{prefix}/job.json")
    successor = acquired(provider, "job", "1h")
    assert provider.extend(lease, "2h") is None
    assert provider.release(lease) is False
    assert record_of(provider, "job").locked_by == successor.locked_by


# The requests of one command, without a server


def replies(command: Any, *given: dict[str, Any] | str) -> tuple[list[AwsRequest], CasReply]:
    """Return the requests for these replies, and the result. A text is an error reply's code."""
    requests, exchange = [], Objects("bucket", "p/").exchange(command)
    request = next(exchange)
    for reply in given:
        requests.append(request)
        try:
            is_error = isinstance(reply, str)
            request = exchange.send(AwsReply({}, TIME, reply) if is_error else AwsReply(reply, TIME))  # type: ignore[arg-type]  # of is_error
        except StopIteration as stop:
            return requests, stop.value
    raise AssertionError(f"one more request: {request}")


def test_a_list_of_several_pages_is_read_to_its_end() -> None:
    pages = [
        {"Contents": [{"Key": "p/a.json"}, {"Key": "p/check-1"}], "IsTruncated": True, "NextContinuationToken": "more"},
        {"Contents": [{"Key": "p/b.json"}], "IsTruncated": False},
    ]
    requests, reply = replies(List("x"), pages[0], content("a"), pages[1], content("b"))
    assert [request.method for request in requests] == ["list_objects_v2", "get_object"] * 2
    assert [entry.record.name for entry in reply.value] == ["a", "b"]
    assert "ContinuationToken" not in requests[0].arguments
    assert (requests[2].arguments["Prefix"], requests[2].arguments["ContinuationToken"]) == ("p/x", "more")


def test_a_record_that_is_deleted_while_the_list_is_read_is_left_out() -> None:
    _, reply = replies(List(""), {"Contents": [{"Key": "p/a.json"}]}, "NoSuchKey")
    assert reply.value == []


@pytest.mark.parametrize("code", ["NoSuchKey", "ConditionalRequestConflict", "OperationAborted"])
def test_replies_that_mean_not_written(code: str) -> None:
    requests, reply = replies(Write(RECORD, "etag"), code)
    assert (requests[0].arguments["IfMatch"], reply.value) == ("etag", None)


def test_a_refused_write_that_was_written_is_recognised() -> None:
    """aiohttp or a proxy has sent a first copy."""
    exchange = Objects("bucket", "p/").exchange(Write(RECORD, "etag"))
    put: AwsRequest = next(exchange)
    get = exchange.send(AwsReply({}, TIME, "PreconditionFailed"))
    assert get.method == "get_object"
    with pytest.raises(StopIteration) as done:
        exchange.send(AwsReply({"Body": put.arguments["Body"], "ETag": "new"}, TIME))
    assert done.value.value.value == "new"
    _, reply = replies(Write(RECORD, "etag"), "PreconditionFailed", content("job"))
    assert reply.value is None
    _, reply = replies(Write(RECORD, "etag"), "PreconditionFailed", "NoSuchKey")
    assert reply.value is None


def test_a_check_whose_first_write_was_sent_twice_is_made_again() -> None:
    """The reply belongs to the second copy."""
    requests, _ = replies(TryConditions(), "PreconditionFailed", {"ETag": "1"}, *2 * ["PreconditionFailed"], {})
    assert [request.method for request in requests] == ["put_object"] * 4 + ["delete_object"]
    keys = [request.arguments["Key"] for request in requests]
    assert keys[0] != keys[1] == keys[2] == keys[3] == keys[4]
    with pytest.raises(ErrorReply, match="refuses If-None-Match"):
        replies(TryConditions(), *3 * ["PreconditionFailed"])


def test_an_absent_object_is_no_record() -> None:
    assert replies(Read("job"), "NoSuchKey")[1].value is None


# URLs


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://", "not of the form"),
        ("s3://key:s3cret-pw@bucket", "credentials do not belong there"),
        ("s3://key:s3cret-pw/@bucket", "not of the form"),
        ("s3://key/s3cret-pw@bucket", "not of the form"),
        ("s3://bucket?history=5", "this store keeps no run history"),
        ("s3://bucket?endpoint=localhost:9000", "endpoint must be a URL"),
        ("s3://bucket?endpoint=http://[::1", "endpoint must be a URL"),
        ("s3://bucket?endpoint=http://host:port", "endpoint must be a URL"),
        ("s3://bucket?endpoint=http://key:s3cret-pw@host:9000", "endpoint takes no user and no password"),
        ("s3://bucket?endpoint=http://key:s3cret-pw@host:port", "endpoint must be a URL"),
        (f"s3://bucket/{'é' * 401}", "the prefix has 802 bytes"),
        ("s3://bucket?clock_error=-1s", "clock_error"),
    ],
)
def test_urls_that_cannot_work(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        provider_from_url(url)
    assert "s3cret-pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket/shedlock/"),
        ("s3://bucket/", "s3://bucket/shedlock/"),
        ("s3://bb/x/y/", "s3://bb/x/y/"),
    ],
)
def test_a_provider_shows_where_its_records_are(url: str, shown: str) -> None:
    assert repr(provider_from_url(url)) == f"<S3LockProvider {shown}>"
