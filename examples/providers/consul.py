"""Locks in Consul's key-value store. Explained in docs/providers/writing-your-own.md."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from shedlock_py.model.durations import Duration
from shedlock_py.providers import cas, kit

UNREAD = datetime(1970, 1, 1, tzinfo=UTC)  # the programs replace it by the time of the read


class RefusedError(Exception):
    """Consul has refused a request, and carried nothing out."""


class ConsulPrograms(cas.CasPrograms):
    """The programs of a compare-and-swap store, and the meanings of Consul's and httpx's errors."""

    def classify(self, error: Exception) -> kit.Failure:
        match error:
            case RefusedError():
                return kit.Failure.REFUSED
            case httpx.HTTPError() | httpx.InvalidURL():  # also a reply with status 5xx: it may be carried out
                return kit.Failure.CONNECTION_LOST
        return super().classify(error)

    def hint(self, error: Exception) -> str | None:
        if isinstance(error, RefusedError):
            return "the URL needs a token that may read and write the locks: consul://:TOKEN@server:8500/prefix"
        return super().hint(error)


class ConsulClient:
    """Each command has its own connection, so threads, forked processes and event loops share nothing."""

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        parts = urlsplit(url)
        self._base = f"http://{parts.hostname}:{parts.port or 8500}/v1"
        self._prefix = parts.path.strip("/") or "shedlock"
        self._headers = {"X-Consul-Token": parts.password or ""}
        self._clock = clock

    def execute(self, command: cas.CasCommand, timeout: float | None) -> cas.CasReply:
        method, url, body = self._request(command)
        with httpx.Client(timeout=timeout, verify=False, trust_env=False) as http:  # a proxy would get the token
            sent_at = self._clock()
            try:
                response = http.request(method, url, json=body, headers=self._headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise kit.NotSent from error
            time = cas.ServerTime.from_header(response.headers.get("Date"), sent_at, self._clock())
        if response.status_code == 403:
            raise RefusedError(response.text)
        if response.status_code not in (404, 409):  # no such key; the condition does not hold
            response.raise_for_status()
        if "X-Consul-Index" not in response.headers and response.headers.get("Content-Type") != "application/json":
            raise httpx.RemoteProtocolError("the reply is not from Consul")
        return cas.CasReply(self._value(command, response), time)

    def _request(self, command: cas.CasCommand) -> tuple[str, str, Any]:
        match command:
            case cas.Read(name):
                return "GET", f"{self._base}/kv/{quote(self._key(name))}?consistent", None
            case cas.List():
                return "GET", f"{self._base}/kv/{quote(self._prefix)}/?consistent&recurse", None
            case cas.Write(record, if_version, is_free):
                value = json.dumps({"name": record.name, "free": is_free, **kit.record_to_json(record)}).encode()
                change = {"Verb": "set", "Key": self._key(record.name), "Value": b64encode(value).decode()}
            case cas.Delete(name, if_version):
                change = {"Verb": "delete", "Key": self._key(name)}
        condition = {"Verb": "check-not-exists", "Key": change["Key"]}
        if if_version is not None:
            condition = {"Verb": "check-index", "Key": change["Key"], "Index": if_version}
        return "PUT", f"{self._base}/txn", [{"KV": condition}, {"KV": change}]

    def _value(self, command: cas.CasCommand, response: httpx.Response) -> Any:
        content: Any = response.json() if response.content else None  # a reply with 404 is empty
        match command:
            case cas.Read():
                return entry_in(content[0]) if content else None
            case cas.List(start):
                entries = (entry_in(pair) for pair in content or () if pair["Value"])  # a folder has no value
                return [entry for entry in entries if entry.record.name.startswith(start)]
        if any(error["OpIndex"] > 0 for error in content["Errors"] or ()):
            raise RefusedError(response.text)  # the condition held, but the change after it failed
        if isinstance(command, cas.Delete):
            return response.is_success
        # Consul counts the changes of all keys: as long as it keeps its data, this version never comes back.
        return content["Results"][-1]["KV"]["ModifyIndex"] if response.is_success else None

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{quote(name, safe='')}.json"


def entry_in(pair: dict[str, Any]) -> cas.Entry:
    fields = json.loads(b64decode(pair["Value"]))
    name, is_free = fields.pop("name"), fields.pop("free")
    return cas.Entry(kit.record_from_json(name, fields, UNREAD), pair["ModifyIndex"], is_free)


class ConsulLockProvider(kit.ProgramProvider):
    """Locks in Consul: ``consul://:TOKEN@server:8500/prefix``. A local agent has the clock of its machine."""

    def __init__(self, url: str, *, clock_error: Duration = "1s", timeout: Duration = "5s") -> None:
        programs = ConsulPrograms(clock_error=clock_error, timeout=timeout, passwords=[urlsplit(url).password or ""])
        super().__init__(programs, ConsulClient(url, programs.clock))


class AsyncConsulLockProvider(kit.AsyncProgramProvider):
    """:class:`ConsulLockProvider` for asyncio: its requests run in threads."""

    def __init__(self, url: str, *, clock_error: Duration = "1s", timeout: Duration = "5s") -> None:
        programs = ConsulPrograms(clock_error=clock_error, timeout=timeout, passwords=[urlsplit(url).password or ""])
        super().__init__(programs, kit.ThreadedClient(ConsulClient(url, programs.clock)))
