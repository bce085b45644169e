"""The proxy for a URL from the environment, by the rules of curl and kubectl."""

from __future__ import annotations

import pytest

from shedlock_py.providers.kit.proxies import is_excluded, proxy_of

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("entry", "host", "expected"),
    [
        ("*", "example.com", True),
        ("example.com", "example.com", True),
        ("example.com", "api.example.com", True),
        (".example.com", "api.example.com", True),
        ("*.example.com", "api.example.com", True),
        ("Example.COM", "api.example.com.", True),
        ("example.com", "notexample.com", False),
        ("example.com:443", "example.com", True),
        ("example.com:8443", "example.com", False),
        ("10.0.0.0/8", "10.96.0.1", True),
        ("10.0.0.1/8", "10.96.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8", "ten.example.com", False),
        ("10.96.0.1", "10.96.0.1", True),
        ("10.96.0.1:443", "10.96.0.1", True),
        ("10.96.0.1:80", "10.96.0.1", False),
        ("fd02::/48", "fd02::1", True),
        ("fd02::/48", "fd03::1", False),
        ("fd02::1", "fd02::1", True),
        ("[fd02::1]:443", "fd02::1", True),
        ("[fd02::1]:80", "fd02::1", False),
        (".svc,.cluster.local, 10.0.0.0/8", "kubernetes.default.svc", True),
        (".svc 10.0.0.0/8", "10.1.2.3", True),
        ("", "example.com", False),
        (",,.,:", "example.com", False),
    ],
)
def test_no_proxy_names_hosts_domains_and_networks(entry: str, host: str, expected: bool) -> None:
    assert is_excluded(host, 443, entry) is expected


def test_the_proxy_of_the_scheme_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of("https://example.com") is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert proxy_of("https://example.com/x") == "http://proxy:3128"
    assert proxy_of("http://example.com") is None
    monkeypatch.setenv("ALL_PROXY", "proxy-of-all:1080")
    assert proxy_of("http://example.com") == "http://proxy-of-all:1080"
    monkeypatch.setenv("NO_PROXY", "fd02::/48,10.0.0.0/8,example.com:8443")
    assert proxy_of("https://[fd02::1]:6443") is None
    assert proxy_of("https://10.96.0.1") is None
    assert proxy_of("https://example.com:8443") is None
    assert proxy_of("https://example.com") == "http://proxy:3128"
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert proxy_of(f"https://{host}:6443") is None
