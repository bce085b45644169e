"""Listeners that report over HTTP: to Healthchecks-style ping URLs, and to a webhook. Needs the extra ``monitors``.

``docs/how-to/monitoring-services.md`` describes the requests. URLs are secrets: whoever has
a URL can check in. So logs and errors name the host only.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import shedlock_py
from shedlock_py import (
    ConfigurationError,
    Event,
    Lease,
    LeaseLost,
    LockAcquired,
    LockEvent,
    RunMissed,
    RunRecovered,
    TaskFinished,
)
from shedlock_py.integrations import REPORTED_MISSES, Label, Slugs, label_of, missing_extra
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.run import describe_error
from shedlock_py.providers.kit.proxies import proxy_of
from shedlock_py.runtime.outbox import DeliveryFailed, Outbox

try:
    import httpx
except ModuleNotFoundError as error:
    raise missing_extra("monitors", "httpx", error) from error

__all__ = ["HealthchecksListener", "WebhookListener"]

DEFAULT_TIMEOUT = "5s"
PLACEHOLDER = "{name}"


@dataclass(frozen=True)
class _Post:
    """One request."""

    url: str = field(repr=False)
    body: str
    headers: Mapping[str, str] = field(repr=False)


class _HttpListener:
    """Puts requests into an outbox."""

    def __init__(self, kind: str, timeout: Duration) -> None:
        seconds = parse_duration(timeout, "timeout").total_seconds()

        def open_sender() -> Callable[[_Post], None]:
            for name in _LOGGERS:
                logging.getLogger(name).addFilter(_is_of_the_application)
            return partial(_send, seconds, httpx.create_ssl_context())

        self._outbox = Outbox(kind, open_sender)

    @property
    def dropped(self) -> int:
        """The number of messages that this process could not deliver."""
        return self._outbox.dropped

    def flush(self, timeout: Duration = "2s") -> bool:
        """Wait until all messages are sent or dropped. Return False if ``timeout`` is over before.

        At a normal exit, the interpreter also waits, for at most two seconds.
        """
        return self._outbox.flush(timeout)


class HealthchecksListener(_HttpListener):
    """Checks in at ping URLs of Healthchecks (healthchecks.io, or your own server), or of a similar service.

    ``configure(…, listeners=[HealthchecksListener({"nightly-report": "https://hc-ping.com/c2f5…"})])``

    The replica that runs a job requests ``<url>/start`` at the start. At the end it requests ``<url>``, or
    ``<url>/fail`` if the task raised or was cancelled. A run that is finally lost requests ``<url>/fail``. A skip and
    an unreachable store send nothing: the service notices a job that nobody runs. A separate thread sends the requests,
    so that a dead or slow service does not delay jobs. A message that the service does not take is dropped.

    :param urls: the ping URL of each lock name; other locks send nothing. Or one URL for all locks, with ``{name}`` for
        the lock name as a slug: ``"https://hc-ping.com/ping-key/{name}?create=1"``. A slug is in lower case, with "-"
        for all characters but a-z, 0-9 and "_". A name without such characters does not check in.
    :param label: returns the name of a check for a lock name. By default names that were filled from a template
        ("sync-{tenant}") share the check of their template. ``label=str`` gives each name its own check.
    :param timeout: the time limit of each step of a request: to connect, to send, and each read of the reply. A service
        that sends its reply byte by byte holds up the other messages of this listener, but no job.
    :raises ConfigurationError: a URL is not valid. The error does not quote it.
    """

    def __init__(
        self, urls: Mapping[str, str] | str, *, label: Label | None = None, timeout: Duration = DEFAULT_TIMEOUT
    ) -> None:
        self._label = label
        self._slugs = Slugs()
        self._urls: dict[str, str] = {}
        self._template: str | None = None
        if isinstance(urls, str):
            if PLACEHOLDER not in urls:
                raise ConfigurationError(
                    "urls: one URL for all jobs needs {name}, as in https://hc-ping.com/ping-key/{name}; "
                    "or give a URL for each lock name: {'nightly-report': 'https://…'}"
                )
            check_url(urls.replace(PLACEHOLDER, "name"), "urls")
            self._template = urls
        elif isinstance(urls, Mapping):
            self._urls = {name: check_url(url, f"urls[{name!r}]") for name, url in urls.items()}
        else:
            raise ConfigurationError(f"urls must be a URL with {PLACEHOLDER}, or a URL for each lock name")
        super().__init__("check-ins", timeout)

    def __call__(self, event: Event) -> None:
        match event:
            case LockAcquired(_, lease):
                self._check_in(event, "/start", lease.claim_id, _run(lease))
            case TaskFinished(_, lease, _, outcome, error):
                suffix = "" if outcome == "succeeded" else "/fail"
                self._check_in(
                    event, suffix, lease.claim_id, _run(lease), None if error is None else describe_error(error)
                )
            case RunMissed(_, fire_time, reason, details) if reason in REPORTED_MISSES:
                run = "a run" if fire_time is None else f"the run of {fire_time.isoformat()}"
                self._check_in(event, "/fail", "", f"{run} was missed: {reason}", details)

    def _check_in(self, event: LockEvent, suffix: str, claim_id: str, *lines: str | None) -> None:
        url = self._url_of(event)
        if url is not None:
            self._outbox.put(_Post(_ping_url(url, suffix, claim_id), "\n".join(filter(None, lines)), _TEXT))

    def _url_of(self, event: LockEvent) -> str | None:
        label = label_of(event.lock_name, event.template, self._label)
        if self._template is not None:
            slug = self._slugs.of(label)
            return self._template.replace(PLACEHOLDER, slug) if slug else None
        return self._urls.get(event.lock_name) or self._urls.get(label)


def _run(lease: Lease) -> str:
    return f"{lease.holder}, fencing token {lease.fencing_token}"


class WebhookListener(_HttpListener):
    """Posts events as JSON: ``configure(…, listeners=[WebhookListener("https://example.com/hooks/jobs")])``

    The default events are the start and the end of each run, a lost lease, and a run that was missed or recovered.
    Skips are left out, because they come from the replicas that did *not* run the job. A separate thread sends the
    events, as for :class:`HealthchecksListener`.

    :param events: the classes of events to send. A base class includes all its subclasses; ``Event`` means all events.
    :param headers: further headers of the requests, such as ``{"Authorization": "Bearer …"}``.
    :param timeout: as for :class:`HealthchecksListener`.
    :raises ConfigurationError: a value cannot work. The error does not quote the URL.
    """

    def __init__(
        self,
        url: str,
        events: Iterable[type[Event]] = (LockAcquired, TaskFinished, LeaseLost, RunMissed, RunRecovered),
        *,
        headers: Mapping[str, str] | None = None,
        timeout: Duration = DEFAULT_TIMEOUT,
    ) -> None:
        self._url = check_url(url, "url")
        kinds: Any = (events,) if isinstance(events, type) else events
        if not isinstance(kinds, Iterable) or isinstance(kinds, str):
            raise ConfigurationError(f"events must be a list of event classes, not {kinds!r}")
        self._events = tuple(kinds)
        for kind in self._events:
            if not (isinstance(kind, type) and issubclass(kind, Event)):
                raise ConfigurationError(f"events must be event classes, such as TaskFinished, not {kind!r}")
        self._headers = {**_JSON, **(headers or {})}
        try:
            httpx.Headers(self._headers)
        except Exception:
            raise ConfigurationError("headers must be a mapping of names to values, both of ASCII characters") from None
        super().__init__("webhook", timeout)

    def __call__(self, event: Event) -> None:
        if isinstance(event, self._events):
            self._outbox.put(_Post(self._url, json.dumps(event_to_json(event)), self._headers))


def event_to_json(event: Event) -> dict[str, Any]:
    """Return ``event`` as a JSON object: its fields, with durations in seconds, and the present time as ``at``."""
    found: dict[str, Any] = {"event": type(event).__name__, "at": datetime.now(UTC).isoformat()}
    if isinstance(event, LockEvent):
        found["template"] = event.template
    for each in fields(event):
        value = getattr(event, each.name)
        if isinstance(value, Lease):
            found |= {name: _as_json(getattr(value, name)) for name in _LEASE_FIELDS}
        else:
            found[each.name] = _as_json(value)
    return found


_LEASE_FIELDS = ("holder", "fencing_token", "claim_id", "fire_time")


def _as_json(value: object) -> Any:
    match value:
        case timedelta():
            return value.total_seconds()
        case datetime():
            return value.isoformat()
        case BaseException():
            return describe_error(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


# Sending

_TEXT = {"Content-Type": "text/plain; charset=utf-8"}
_JSON = {"Content-Type": "application/json"}
_LOGGERS = ("httpx", *(f"httpcore.{name}" for name in ("connection", "http11", "http2", "proxy", "socks")))
"""All loggers that write about a request. A logger's filter does not apply to its child loggers."""
_is_sending: ContextVar[bool] = ContextVar("shedlock_is_sending", default=False)


def check_url(url: object, what: str) -> str:
    """Return ``url`` if it is valid. Errors do not quote it."""
    if not isinstance(url, str) or not _is_usable(url):
        raise ConfigurationError(f"{what} must be a URL that begins with https:// or http://, and has a valid host")
    return url


def _is_usable(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
        urlsplit(url)
        parsed.raw_host.decode().encode("idna")  # a look-up of the host's address does the same
        return (
            parsed.scheme in ("http", "https") and bool(parsed.host) and (parsed.port or 0) < 65536 and " " not in url
        )
    except (httpx.InvalidURL, ValueError):
        return False


def _ping_url(url: str, suffix: str, claim_id: str) -> str:
    """Return the URL of a check with ``suffix`` after its path, and with the run's id to pair the start and the end."""
    parts = urlsplit(url)
    try:
        run_id = f"rid={UUID(hex=claim_id)}"
    except ValueError:  # a missed run has no claim id, and some providers make other claim ids
        run_id = ""
    query = "&".join(filter(None, (parts.query, run_id)))
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + suffix, query=query, fragment=""))


def _send(seconds: float, context: ssl.SSLContext, post: _Post) -> None:
    """Send a request on a new connection. The service or a firewall would close a connection that waits for a run."""
    host = urlsplit(post.url).hostname
    headers = httpx.Headers({"User-Agent": f"shedlock_py/{shedlock_py.__version__}"})
    headers.update(post.headers)
    token = _is_sending.set(True)
    try:
        # Do not read the body of the reply, because it could be endless.
        with httpx.stream(
            "POST",
            post.url,
            content=post.body.encode(errors="replace"),
            headers=headers,
            timeout=seconds,
            proxy=proxy_of(post.url),
            verify=context,
            trust_env=False,
        ) as response:
            status = response.status_code
    except httpx.TimeoutException:
        raise DeliveryFailed(f"{host}: no reply within {seconds:g} s (timeout)") from None
    except httpx.ConnectError as error:
        raise DeliveryFailed(f"{host}: {error}") from None
    except httpx.HTTPError as error:  # the error text may quote a header
        raise DeliveryFailed(f"{host}: {type(error).__name__}") from None
    except (ImportError, ValueError, httpx.InvalidURL):  # the error text may quote a password
        raise DeliveryFailed("the proxy of the environment cannot be used", is_final=True) from None
    finally:
        _is_sending.reset(token)
    if not 200 <= status < 300:
        raise DeliveryFailed(f"{host} replied {status}", is_final=status < 500 and status != 429)


def _is_of_the_application(record: logging.LogRecord) -> bool:
    """Log filter: httpx logs URLs at INFO. httpcore logs reply headers at DEBUG, and so the target of a redirect."""
    return not _is_sending.get()
