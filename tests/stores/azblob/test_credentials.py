"""Credentials: from the URL, from variables, and an identity; and URLs that cannot work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from azure.storage.blob import generate_container_sas

from shedlock_py import ConfigurationError, LockRequest, ProviderError, ProviderUnreachable, provider_from_url
from shedlock_py.providers.azblob import AzureBlobLockProvider
from shedlock_py.providers.azblob.place import Place
from tests.stores.azblob.conftest import Open
from tests.stores.clients import both_clients_in_full
from tests.support.azblob import ACCOUNT, CONTAINER, KEY, AzuriteServer
from tests.support.locks import acquired

REQUEST = LockRequest("job", "1m")


def sas(permission: str = "rcwdl", hours: int = 1) -> str:
    now = datetime.now(UTC)
    end, start = now + timedelta(hours=hours), now - timedelta(hours=9)
    return generate_container_sas(ACCOUNT, CONTAINER, account_key=KEY, permission=permission, expiry=end, start=start)


@both_clients_in_full
def test_a_sas_token_with_the_permissions_of_the_page_is_enough(open_provider: Open, prefix: str) -> None:
    provider = open_provider(credentials=f"sas_token={quote(sas(), safe='')}")
    provider.create_schema()
    assert provider.release(acquired(provider, "job"))
    assert [record.name for record in provider.records()] == ["job"]
    provider.prune(0)


def test_a_sas_token_that_has_ended_or_allows_too_little_is_refused_and_not_shown(open_provider: Open) -> None:
    for token, code in ((sas(hours=-1), "AuthorizationFailure"), (sas("r"), "AuthorizationPermissionMismatch")):
        provider = open_provider(credentials=f"sas_token={quote(token, safe='')}")
        with pytest.raises(ProviderError, match=code) as caught:
            provider.acquire(REQUEST)
        assert token.partition("sig=")[2] not in f"{caught.value} {caught.value.hint} {provider!r}"


@both_clients_in_full
def test_a_wrong_key_is_a_refusal_that_does_not_show_it(open_provider: Open) -> None:
    for key, reason in (("c2VjcmV0LWtleQ==", "AuthorizationFailure"), ("s3cret-pw1", "invalid shared key")):
        with pytest.raises(ProviderError, match=reason) as caught:
            open_provider(credentials=f"account_key={key}").acquire(REQUEST)
        assert key not in f"{caught.value} {caught.value.hint}"


@both_clients_in_full
def test_i5_without_any_credentials_each_operation_is_an_outage(
    open_url: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source of a token may be away for a moment. Then a late run still happens."""
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # try no other source
    with pytest.raises(ProviderUnreachable, match="DefaultAzureCredential failed to retrieve a token") as caught:
        open_url("azblob://account/locks").acquire(REQUEST)
    assert "give the process an identity" in str(caught.value.hint)


def test_the_first_credentials_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL comes first, then the connection string, the key and the SAS token."""
    url, key, token = (
        "azblob://acc/locks",
        f";AccountName=acc;AccountKey={KEY}",
        ";SharedAccessSignature=sv=1&sig=a%2Bb",
    )
    at_azure = "BlobEndpoint=https://acc.blob.core.windows.net"

    def connection(url: str) -> str:
        return Place.from_url(url).connection

    assert (connection(url), Place.from_url(url).is_keyless) == (at_azure, True)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=a%2Bb\n")
    assert connection(url) == at_azure + token
    assert "a+b" in Place.from_url(url).passwords
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    assert connection(url) == at_azure + key
    assert connection(f"{url}?sas_token={quote('sv=1&sig=a%2Bb', safe='')}") == at_azure + token
    assert connection(f"{url}?endpoint=https://acc.blob.core.chinacloudapi.cn").startswith(
        "BlobEndpoint=https://acc.blob.core.chinacloudapi.cn;"
    )
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=acc;AccountKey={KEY};EndpointSuffix=x.example")
    assert connection(url) == f"AccountName=acc;AccountKey={KEY};EndpointSuffix=x.example"
    assert KEY in Place.from_url(url).passwords
    assert connection(f"{url}?account_key={quote(KEY, safe='')}") == at_azure + key
    with pytest.raises(ConfigurationError, match="'other', and AZURE_STORAGE_CONNECTION_STRING 'acc'"):
        connection("azblob://other/locks")
    endpoint = (
        "BlobEndpoint=https://acc.blob.core.windows.net/;SharedAccessSignature=sv=1"  # the portal's, with a SAS token
    )
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", endpoint)
    assert connection(url) == endpoint
    with pytest.raises(ConfigurationError, match="'other', and AZURE_STORAGE_CONNECTION_STRING 'acc'"):
        connection("azblob://other/locks")


def test_a_connection_string_opens_the_store(
    azblob_server: AzuriteServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = azblob_server.address
    endpoint = f"BlobEndpoint=http://{host}:{port}/{ACCOUNT}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName={ACCOUNT};AccountKey={KEY};{endpoint};")
    provider = AzureBlobLockProvider(f"azblob://{ACCOUNT}/{CONTAINER}/{prefix}")
    acquired(provider, "job")
    provider.close()


URLS = [
    ("azblob://", "not of the form"),
    ("azblob://account", "not of the form"),
    ("azblob://account/Container", "not of the form"),
    ("azblob://key:s3cret-pw@account/locks", "not of the form"),
    ("azblob://account/locks/s3cret-pw@x", "not of the form"),
    ("azblob://account/locks/../x", "not of the form"),
    ("azblob://account/locks?history=5", "this store keeps no run history"),
    ("azblob://account/locks?endpoint=localhost:10000", "endpoint must be a URL"),
    (f"azblob://account/locks/{'é' * 401}", "the prefix has 802 bytes"),
    ("azblob://account/locks?lease=15", "unknown option 'lease'; supported: account_key, sas_token, endpoint"),
]


def test_urls_that_cannot_work() -> None:
    for url, problem in URLS:
        with pytest.raises(ConfigurationError, match=problem) as caught:
            provider_from_url(url)
        assert "s3cret-pw" not in str(caught.value)
    assert repr(provider_from_url("azblob://account/locks/x/y/?sas_token=sig%3D1")) == (
        "<AzureBlobLockProvider azblob://account/locks/x/y/>"
    )
