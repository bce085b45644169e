"""Metrics over HTTP, as a Prometheus server scrapes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """A scrape. ``scrape("shedlock_running", lock="job")`` is None if the series does not exist."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self) -> dict[str, set[str]]:
        """The labels of each metric of the library, without creation times."""
        labels: dict[str, set[str]] = {}
        for name, pairs in self.samples:
            if name.startswith("shedlock_") and not name.endswith("_created"):
                labels.setdefault(name, set()).update(label for label, _ in pairs)
        return labels

    def values(self, name: str, label: str) -> set[str]:
        return {value for (sample, pairs) in self.samples if sample == name for key, value in pairs if key == label}


class Server:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/metrics"

    def scrape(self) -> Scrape:
        with urlopen(self.url, timeout=60) as response:
            return Scrape(response.read().decode())


@contextmanager
def serving(registry: CollectorRegistry) -> Iterator[Server]:
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield Server(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
