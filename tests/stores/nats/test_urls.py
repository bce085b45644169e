"""URLs: their options, and the errors before anything is sent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shedlock_py import ConfigurationError, LockRequest, provider_from_url
from shedlock_py.providers.nats.urls import Place
from tests.stores.nats.conftest import Open
from tests.support.ports import free_port


def test_a_url_names_servers_bucket_and_copies() -> None:
    three = Place.from_url("nats://me%40home:p%2Fw%3A@h1,h2:1,[::1]/jobs")
    assert (three.cluster.hosts, three.bucket, three.replicas) == (("h1:4222", "h2:1", "[::1]:4222"), "jobs", 3)
    assert (three.cluster.user, three.cluster.password) == ("me@home", "p/w:")
    assert "p/w:" not in repr(three) + three.shown
    one = Place.from_url("nats://h?replicas=5&ca=ca.pem")
    assert (one.bucket, one.replicas, one.certificates is not None) == ("shedlock", 5, True)
    assert Place.from_url("nats://h/").replicas == 1


def test_a_url_that_cannot_work_is_refused() -> None:
    for rest, what in (
        ("h/a.b", "'a.b': the name of a bucket has only letters"),
        ("h/a/b", "'a/b': the name of a bucket"),
        ("h?replicas=9", "replicas='9' is not a number from 1 to 5"),
        ("h?bucket=x", "unknown option 'bucket'; supported: ca, cert, key, tls, credentials, replicas, timeout"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            provider_from_url(f"nats://{rest}")


def test_a_credentials_file_that_cannot_be_used_is_named(open_url: Open, tmp_path: Path) -> None:
    text = tmp_path / "text.creds"
    text.write_text("no credentials")
    for path, what in (("/no/such/file", "No such file"), (str(text), "not a file of NATS credentials")):
        with pytest.raises(ConfigurationError, match=re.escape(f"credentials={path!r}: {what}")):
            open_url(f"nats://127.0.0.1:{free_port()}?credentials={path}").acquire(LockRequest("job", "1m"))
