"""The process of the former version: a server that carries out operations of its providers, one JSON line for each.

:mod:`tests.support.former` starts it. Here ``shedlock_py`` is the former version, so this module uses only public names
that both versions have. Its ``encode`` and ``decode`` are for both processes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import shedlock_py
from shedlock_py import Lease, LockRecord, LockRequest, ProviderError

MICROSECOND = timedelta(microseconds=1)


def encode(value: Any, lease: Callable[[Any], Any]) -> Any:
    """Return ``value`` as JSON can carry it. ``lease`` encodes a lease, which stays in the process that acquired it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [encode(item, lease) for item in value]
        case datetime():
            return {"datetime": value.isoformat()}
        case timedelta():
            return {"microseconds": value // MICROSECOND}
        case Lease():
            return {"Lease": lease(value)}
        case _ if dataclasses.is_dataclass(value):
            found = {field.name: encode(getattr(value, field.name), lease) for field in dataclasses.fields(value)}
            return {type(value).__name__: found}
    raise TypeError(f"no form on the wire: {value!r}")


def decode(data: Any, kinds: dict[str, Any]) -> Any:
    """Return what ``encode`` has encoded.

    :param kinds: the classes of this process, by name, and a function for "Lease". A field that the class does not have
        is left out: another version has added it.
    """
    if isinstance(data, list):
        return [decode(item, kinds) for item in data]
    if not isinstance(data, dict):
        return data
    [(kind, value)] = data.items()
    if kind == "datetime":
        return datetime.fromisoformat(value)
    if kind == "microseconds":
        return value * MICROSECOND
    if kind == "Lease":
        return kinds[kind](value)
    known = {field.name for field in dataclasses.fields(kinds[kind])}
    return kinds[kind](**{name: decode(each, kinds) for name, each in value.items() if name in known})


class FormerServer:
    """Providers and leases. A request names an object by its number; the server itself is number 0."""

    def __init__(self) -> None:
        self._objects: list[Any] = [self]

    def where(self) -> str:
        return str(Path(shedlock_py.__file__).parent.parent)

    def open(self, module: str, class_name: str, where: str, options: list[list[Any]]) -> int:
        provider = getattr(import_module(f"shedlock_py.providers.{module}"), class_name)(where, **dict(options))
        self._objects.append(provider)
        return len(self._objects) - 1

    def run_once(self, provider: int, key: str) -> bool:
        return shedlock_py.run_once(key, lambda: None, provider=self._objects[provider])

    def reply(self, line: str) -> dict[str, Any]:
        request = json.loads(line)
        kinds = {"LockRequest": LockRequest, "LockRecord": LockRecord, "Lease": self._objects.__getitem__}
        try:
            arguments = decode(request["arguments"], kinds)
            options = {name: decode(value, kinds) for name, value in request["options"].items()}
            result = getattr(self._objects[request["on"]], request["method"])(*arguments, **options)
            return {"result": encode(result, self._lease)}
        except ProviderError as error:
            told = {"operation": error.operation, "lock_name": error.lock_name, "hint": error.hint}
            return {"error": type(error).__name__, "message": error.message, "options": told}
        except shedlock_py.ConfigurationError as error:
            return {"error": type(error).__name__, "message": str(error), "options": {}}
        except Exception:
            return {"error": "FormerError", "message": traceback.format_exc(), "options": {}}

    def _lease(self, lease: Lease) -> dict[str, Any]:
        if lease not in self._objects:
            self._objects.append(lease)
        public = {name: value for name, value in vars(lease).items() if not name.startswith("_")}
        return {
            "number": self._objects.index(lease),
            **{name: encode(value, self._lease) for name, value in public.items()},
        }


def main() -> None:
    server = FormerServer()
    for line in sys.stdin:
        print(json.dumps(server.reply(line)), flush=True)


if __name__ == "__main__":
    main()
