"""The place of an Amazon service and the user, from a URL, or else from boto3's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.cas.options import check_endpoint, split_query

_OPTIONS = ("region", "profile", "endpoint")
POOL_SIZE = 16


@dataclass(frozen=True)
class Place:
    """An Amazon service, or a service with the same interface. boto3's configuration supplies values that are None.

    :ivar service: boto3's name of it: ``"dynamodb"``, ``"s3"``.
    :ivar shown: for people.
    :ivar config: options of botocore's ``Config`` for this service, besides time limits and connections.
    :ivar handlers: functions that the client calls at events of botocore.
    """

    service: str
    shown: str
    region: str | None = None
    profile: str | None = None
    endpoint: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    handlers: Mapping[str, Callable[..., None]] = field(default_factory=dict)

    def client_arguments(self, config: type, timeout: float | None) -> dict[str, Any]:
        """Return the arguments for ``client()`` of boto3 and ``create_client()`` of aiobotocore.

        :param config: the class ``Config`` of boto3 or aiobotocore.
        """
        limits = {} if timeout is None else {"connect_timeout": timeout, "read_timeout": timeout}
        # The kit retries, and knows which commands it may repeat. botocore would send a command up to ten times.
        once = {"total_max_attempts": 1, "mode": "standard"}
        made = config(**limits, retries=once, max_pool_connections=POOL_SIZE, **self.config)
        return {"service_name": self.service, "endpoint_url": self.endpoint, "config": made}

    def register_handlers(self, client: Any) -> None:
        for event, handler in self.handlers.items():
            client.meta.events.register(event, handler)


def split_url(url: str, scheme: str, form: str) -> tuple[str, str, dict[str, str]]:
    """Return host, path and options of ``url``. Host and path are unquoted, and the path has no slashes around it.

    :param form: an example of such a URL, for messages.
    :raises ConfigurationError: the URL has another form.
    """
    location, given = split_query(url, scheme, _OPTIONS, form)
    host, _, path = location.partition("/")
    if "@" in host:
        raise ConfigurationError(
            f"store URL: credentials do not belong there; boto3 finds them in its own configuration, and profile "
            f"chooses one of its profiles. The form is {form}"
        )
    if not host:
        raise ConfigurationError(f"store URL: not of the form {form}")
    if "endpoint" in given:
        check_endpoint(given["endpoint"])
    return unquote(host), unquote(path).strip("/"), given
