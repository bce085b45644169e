"""A model of client-go's elector: its rules since 0.27, in the order of its code.

https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/client-go/tools/leaderelection/leaderelection.go
(`tryAcquireOrRenew`, `release`, `isLeaseValid`) and `resourcelock/leaselock.go`.
"""

from __future__ import annotations

import urllib.error
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tests.support.fake_kubernetes import LEASES
from tests.support.kubernetes import KubernetesServer

Lease = dict[str, Any]


class Record(NamedTuple):
    """The fields that an elector compares. Go writes whole seconds into their JSON."""

    holder: str
    seconds: int
    acquired: str
    renewed: str
    transitions: int

    @classmethod
    def of(cls, lease: Lease) -> Record:
        spec = lease["spec"]
        times = spec["acquireTime"][:19], spec["renewTime"][:19]
        return cls(spec["holderIdentity"], spec["leaseDurationSeconds"], *times, spec.get("leaseTransitions", 0))


class Elector:
    """``now``: its clock, in seconds. ``skew``: how far its wall clock, the source of the written times, is ahead."""

    def __init__(
        self, server: KubernetesServer, namespace: str, name: str, identity: str, seconds: int = 15, skew: float = 0.0
    ) -> None:
        self._server, self._path, self._name = server, LEASES.format(namespace), name
        self.identity, self.seconds, self.skew, self.now = identity, seconds, skew, 0.0
        self._lease: Lease = {}
        self._observed: Record | None = None
        self._observed_at = 0.0

    @property
    def is_leader(self) -> bool:
        return self._observed is not None and self._observed.holder == self.identity

    def try_acquire_or_renew(self) -> bool:
        if self.is_leader and self._is_valid():
            assert self._observed
            if self._update(self._spec(self._observed.acquired, self._observed.transitions)):
                return True
        lease = self._get()
        if lease is None:
            created = {"metadata": {"name": self._name}, "spec": self._spec(None, 0)}
            return self._write("POST", self._path, created)
        self._lease = lease
        record = Record.of(lease)
        if record != self._observed:
            self._observed, self._observed_at = record, self.now
        if record.holder and self._is_valid() and not self.is_leader:
            return False
        same = self.is_leader
        return self._update(self._spec(record.acquired if same else None, record.transitions + (not same)))

    def release(self) -> bool:
        """Release like client-go with ``ReleaseOnCancel``."""
        assert self._observed
        spec = self._spec(None, self._observed.transitions)
        return not self.is_leader or self._update({**spec, "holderIdentity": "", "leaseDurationSeconds": 1})

    def _is_valid(self) -> bool:
        assert self._observed
        return self._observed_at + self._observed.seconds > self.now

    def _spec(self, acquired: str | None, transitions: int) -> dict[str, Any]:
        now = (datetime.now(UTC) + timedelta(seconds=self.skew)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.seconds,
            "acquireTime": f"{acquired}.000000Z" if acquired else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _get(self) -> Lease | None:
        try:
            found: Lease = self._server.ask("GET", f"{self._path}/{self._name}")
            return found
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None

    def _update(self, spec: dict[str, Any]) -> bool:
        return self._write("PUT", f"{self._path}/{self._name}", {**self._lease, "spec": spec})

    def _write(self, method: str, path: str, lease: Lease) -> bool:
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease}
        try:
            self._lease = self._server.ask(method, path, body)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
            return False
        self._observed, self._observed_at = Record.of(self._lease), self.now
        return True
