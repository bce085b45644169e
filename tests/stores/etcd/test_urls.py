"""URLs: their options, and the errors before anything is sent."""

from __future__ import annotations

import re
import resource
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockRequest, ProviderUnreachable, async_provider_from_url, provider_from_url
from shedlock_py.providers.etcd import EtcdLockProvider
from shedlock_py.providers.etcd.urls import Place
from tests.stores.etcd.conftest import Open


@pytest.mark.parametrize(
    ("url", "endpoints", "prefix"),
    [
        ("etcd://h", ["http://h:2379"], "/shedlock/"),
        ("etcd://h1,h2:1,h3", ["http://h1:2379", "http://h2:1", "http://h3:2379"], "/shedlock/"),
        ("etcd://[::1]:7,[::2]/", ["http://[::1]:7", "http://[::2]:2379"], "/shedlock/"),
        ("etcd://h/app/jobs/?tls=true", ["https://h:2379"], "/app/jobs/"),
        ("etcd://h?tls=yes", ["https://h:2379"], "/shedlock/"),
        ("etcd://h?tls=0", ["http://h:2379"], "/shedlock/"),
        ("etcd://h/gr%C3%B6%C3%9Fe?ca=ca.pem", ["https://h:2379"], "/größe/"),
    ],
)
def test_a_url_names_members_and_prefix(url: str, endpoints: list[str], prefix: str) -> None:
    place = Place.from_url(url)
    assert (place.endpoints, place.prefix) == (endpoints, prefix)


def test_user_and_password_of_a_url_are_decoded_and_not_shown() -> None:
    place = Place.from_url("etcd://me%40home:p%2Fw%3A@h")
    assert (place.cluster.user, place.cluster.password) == ("me@home", "p/w:")
    assert "p/w:" not in repr(place) + place.shown


@pytest.mark.parametrize(
    ("rest", "what"),
    [
        ("", "not of the form"),
        ("h#x", "not of the form"),
        ("h:port", "'h:port' is not host:port"),
        ("h:0", "'h:0' is not host:port"),
        ("h:99999", "is not host:port"),
        ("h1,,h2", "'' is not host:port"),
        ("::1", "'::1' is not host:port"),
        ("[::1", r"'\[::1' is not host:port"),
        ("ho st", "'ho st' is not host:port"),
        (
            "h?timout=3s",
            "unknown option 'timout'; supported: ca, cert, key, tls, timeout, fire_time_tolerance, clock_error",
        ),
        ("h?tls=perhaps", "store URL: tls='perhaps' is neither true nor false"),
        ("h?tls=false&ca=ca.pem", "but there are certificates"),
        ("h?key=key.pem", "key is the key of a certificate: name that as well"),
        ("h?history=5", "this store keeps no run history"),
        ("h?clock_error=soon", "clock_error='soon' is not a duration"),
        ("h?clock_error=-1s", "clock_error"),
        ("h?timeout=0", "timeout"),
    ],
)
def test_a_url_that_cannot_work_is_refused(rest: str, what: str) -> None:
    for from_url in (provider_from_url, async_provider_from_url):
        with pytest.raises(ConfigurationError, match=what):
            from_url(f"etcd://{rest}")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("ca=/no/such/file", "ca='/no/such/file': No such file"),
        ("cert={text}&key=/no/such/key", "key='/no/such/key': No such file"),
        ("ca={text}", "ca='{text}': not a certificate in PEM"),
        ("cert={text}", "cert='{text}': not a certificate in PEM"),
        ("cert={text}&key={text}", "cert='{text}', key='{text}': not a certificate in PEM, or its key does not match"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(open_url: Open, tmp_path: Path, options: str, what: str) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    provider = open_url(f"etcd://127.0.0.1:1?{options.format(text=text)}")
    with pytest.raises(ConfigurationError, match=re.escape(what.format(text=text))):
        provider.acquire(LockRequest("job", "1m"))


def test_i5_without_a_descriptor_to_read_a_certificate_it_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not read")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(EtcdLockProvider(f"etcd://127.0.0.1:1?ca={tmp_path / 'ca.pem'}")) as provider:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            with pytest.raises(ProviderUnreachable, match="Too many open files"):
                provider.acquire(LockRequest("job", "1m"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_bare_number_in_a_url_is_seconds() -> None:
    programs: Any = EtcdLockProvider("etcd://h?timeout=3&clock_error=2&fire_time_tolerance=90").programs
    assert (programs.timeout, programs.clock_error.seconds, programs.fire_time_tolerance.seconds) == (3, 2, 90)


def test_arguments_win_and_the_variable_for_history_is_for_other_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEDLOCK_HISTORY", "5")
    provider = EtcdLockProvider("etcd://h?timeout=3s&clock_error=2s", timeout="7s", clock_error=0)
    assert (provider.programs.timeout, provider.programs.history) == (7.0, 0)


def test_an_etcd_password_with_a_question_mark_is_not_quoted() -> None:
    for url in ("etcd://me:pa?hunter2=x@h", "etcd://me:hunter2?ca=y@h", "etcd://me:a@b?hunter2=z@h"):
        with pytest.raises(ConfigurationError, match="%3F for ") as refused:
            provider_from_url(url)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="%3F for ") as refused:
        provider_from_url("etcd://me:x?timeout=hunter2@h")
    assert "hunter2" not in str(refused.value)
