"""The container and its credentials, from a URL and the environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.cas.objects import checked_prefix
from shedlock_py.providers.cas.options import check_endpoint, split_query

_FORM = "azblob://account/container/prefix, with names of letters in lower case and digits, in containers also -"
_PLACE = re.compile(r"([a-z0-9]{3,24})/([a-z0-9-]{3,63})(?:/([^@]*))?")
"""The names of an account and a container, and a prefix. A text with ``@`` may be a part of a password."""
_ACCOUNT = re.compile(r"(?i)\bAccountName=([^;]*)")
_HOST = re.compile(r"(?i)\bBlobEndpoint=https://([a-z0-9]+)\.blob\.")
"""The portal's connection strings with a SAS token name the account only in the endpoint."""


@dataclass(frozen=True)
class Place:
    """A prefix in a container.

    :ivar connection: a connection string of Azure.
    :ivar is_keyless: True if credentials are missing. Then the SDK's ``DefaultAzureCredential`` finds them.
    """

    account: str
    container: str
    prefix: str
    connection: str
    is_keyless: bool

    @classmethod
    def from_url(cls, url: str) -> Place:
        """Return the place of a URL. :raises ConfigurationError: the URL or a variable cannot work."""
        location, given = split_query(url, "azblob", ("account_key", "sas_token", "endpoint"), _FORM)
        found = _PLACE.fullmatch(location := unquote(location))
        if found is None or not {".", ".."}.isdisjoint(location.split("/")):
            raise ConfigurationError(f"store URL: not of the form {_FORM}")
        account, container, prefix = found[1], found[2], checked_prefix((found[3] or "").strip("/"))
        connection = "" if given else os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").strip()
        if connection:
            named = _ACCOUNT.search(connection) or _HOST.search(connection)
            if named and named[1] != account:
                raise ConfigurationError(
                    f"the store URL names the account {account!r}, and AZURE_STORAGE_CONNECTION_STRING {named[1]!r}"
                )
            return cls(account, container, prefix, connection, is_keyless=False)
        endpoint = given.get("endpoint", f"https://{account}.blob.core.windows.net")
        check_endpoint(endpoint)
        credentials = _credentials(account, given)
        return cls(account, container, prefix, f"BlobEndpoint={endpoint}{credentials}", is_keyless=not credentials)

    @property
    def shown(self) -> str:
        return f"azblob://{self.account}/{self.container}/{self.prefix}"

    @property
    def passwords(self) -> list[str]:
        secrets = re.findall(r"(?i)\b(?:AccountKey|SharedAccessSignature)=([^;]+)", self.connection)
        return [*secrets, *map(unquote, re.findall(r"\bsig=([^&;]+)", self.connection))]


def _credentials(account: str, given: dict[str, str]) -> str:
    """Return the fields of a connection string, from the options of a URL or the variables of the Azure CLI."""
    key, sas = given.get("account_key", ""), given.get("sas_token", "")
    if not key and not sas:
        key, sas = os.environ.get("AZURE_STORAGE_KEY", ""), os.environ.get("AZURE_STORAGE_SAS_TOKEN", "")
    if key:
        return f";AccountName={account};AccountKey={key.strip()}"
    return f";SharedAccessSignature={sas.strip().lstrip('?')}" if sas else ""
