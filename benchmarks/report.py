"""Make the tables of docs/results/benchmarks.md from the raw figures. Ratios come first; times are context.

``python -m benchmarks.report`` writes the page and the charts again from the last full run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import charts, history, simulate
from benchmarks.contenders import US
from benchmarks.machine import ROOT
from benchmarks.targets import TARGETS, Figure, Results

PAGE = ROOT / "docs" / "results" / "benchmarks.md"
CHARTS = ROOT / "docs" / "benchmarks"
LAST = ROOT / "benchmarks" / "results" / "last.json"
BEGIN = "<!-- begin: written by `make bench` -->"
END = "<!-- end: written by `make bench` -->"

TITLES = {
    "redis": "Redis",
    "postgres": "PostgreSQL",
    "mariadb": "MariaDB",
    "mysql": "MySQL",
    "sqlite": "SQLite and files",
    "mongodb": "MongoDB's protocol",
    "etcd": "etcd",
    "dynamodb": "DynamoDB Local",
    "s3": "S3 (SeaweedFS)",
    "kubernetes": "Kubernetes",
}
NOTHING = "–"


def write(results: Results, page: Path = PAGE, directory: Path = CHARTS) -> None:
    """Rewrite both pages between their marks, and the charts."""
    page.write_text(filled(page.read_text(), results))
    directory.mkdir(exist_ok=True)
    for name, picture in charts.draw(results).items():
        (directory / name).write_text(picture)
    simulate.write(results)


def filled(text: str, results: Results) -> str:
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"no marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables(results, pictures=True)}\n{END}{after}"


def tables(results: Results, *, pictures: bool = False) -> str:
    parts = [*_targets(results)]
    for store in TITLES:
        parts += _one_client(results, store, pictures)
    parts += _contention(results, pictures)
    parts += _work(results)
    parts += _costs(results)
    parts += _history(results)
    parts += _grows(results, pictures)
    parts += _without_a_store(results)
    parts += _life(results)
    parts += _absent(results)
    parts += _machine(results)
    return "\n".join(parts)


_LACKS = "lacks, compared with ours"
_TEXTS = {_LACKS, "lacks", "what", "why", "reached", "best of the others", "with a fencing token"}
"""Columns with texts."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    ruler = ["---" if column in _TEXTS or not number else "---:" for number, column in enumerate(header)]
    lines = [" | ".join(row) for row in (header, ruler, *rows)]
    return [*(f"| {line} |" for line in lines), ""]


def _targets(results: Results) -> list[str]:
    rows = []
    for target in TARGETS:
        ours = target.ours(results)
        if ours is None:
            rows.append([target.what, NOTHING, target.shown_limit(), "not measured", NOTHING, NOTHING])
            continue
        reached = "yes" if target.is_reached(ours) else "**no**"
        shown = _spread(ours, target.digits) + (f" ({ours.whose})" if ours.whose else "")
        others = [_other(target.best(results, with_token=token)) for token in (False, True)]
        rows.append([target.what, shown + target.unit, target.shown_limit(), reached, *others])
    return [
        "## Targets",
        "",
        "Ratios compare with the floor in the same round: the median of all rounds, and the middle half in brackets."
        ' "Best of the others" means the packages with a lease.',
        "",
        *table(["", "measured", "target", "reached", "best of the others", "with a fencing token"], rows),
    ]


def _other(best: Figure | None) -> str:
    return f"{best.whose} {best.value:.2f}" if best else NOTHING


def _spread(figure: Figure, digits: int = 2) -> str:
    text = f"**{figure.value:.{digits}f}**"
    if figure.low is not None and figure.high is not None:
        text += f" ({figure.low:.{digits}f}–{figure.high:.{digits}f})"
    return text


def _one_client(results: Results, store: str, pictures: bool) -> list[str]:
    groups = {group: results.get("latency", {}).get(group) for group in (store, f"{store} async")}
    if not any(groups.values()):
        return []
    parts = [f"## {TITLES[store]}", ""]
    if pictures and groups[store]:
        alt = f"Ratio to the floor of an acquire and release on {TITLES[store]}"
        parts += [f"![{alt}](../benchmarks/ratio-{store}.svg)", ""]
    for group, entries in groups.items():
        if entries:
            parts += _group(group, entries)
    return parts


def _group(group: str, entries: dict[str, Any]) -> list[str]:
    rows = [
        [
            _name(name, entry["kind"]),
            _ratio(entry, "ratio"),
            _number(entry, "p50_us"),
            _number(entry, "p95_us"),
            _ratio(entry, "skip_ratio"),
            _number(entry, "skip_p50_us"),
            entry["lacks"] or NOTHING,
        ]
        for name, entry in _ordered(entries)
    ]
    header = [
        "asyncio" if group.endswith(" async") else "synchronous",
        "acquire + release: ratio",
        "p50 µs",
        "p95 µs",
        "skip: ratio",
        "p50 µs",
        _LACKS,
    ]
    return table(header, rows)


def _work(results: Results) -> list[str]:
    """Processor time and traffic."""
    parts: list[str] = []
    for group, entries in _in_order(results.get("latency", {})):
        wire = results.get("wire", {}).get(group, {})
        rows = []
        for name, entry in _ordered(entries):
            counted = wire.get(name, {})
            rows.append(
                [
                    _name(name, entry["kind"]),
                    _ratio(entry, "cpu_ratio"),
                    _number(entry, "client_cpu_us"),
                    _number(entry, "server_cpu_us"),
                    *(_number(counted, f"cycle_{what}", 1) for what in ("round_trips", "bytes")),
                    *(_number(counted, f"skip_{what}", 1) for what in ("round_trips", "bytes")),
                ]
            )
        is_async = group.endswith(" async")
        header = [
            TITLES[group.removesuffix(" async")] + (", asyncio" if is_async else ""),
            "client's CPU: ratio",
            "µs",
            "server's CPU µs",
            "round trips",
            "bytes",
            "skip: round trips",
            "bytes",
        ]
        parts += table(header, rows)
    if not parts:
        return []
    words = (
        "For one acquire and release: processor time, which other processes disturb less than elapsed time, and"
        " traffic on the network. Read `server's CPU` also as milliseconds for 1,000 operations."
    )
    return ["## Processor time and traffic", "", words, "", *parts]


def _in_order(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Sort by store in the usual order; each store's async group follows its sync group."""
    return [(group, found[group]) for store in TITLES for group in (store, f"{store} async") if group in found]


def _rank(name: str) -> tuple[int, str]:
    """The floor, then ours, then peers."""
    return (0 if name == "floor" else 1 if name.startswith(US) else 2), name


def _ordered(entries: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(entries.items(), key=lambda item: _order(*item))


def _order(name: str, entry: dict[str, Any]) -> tuple[int, float]:
    kinds = {"floor": 0, "us": 1, "context": 2, "peer": 3}
    return kinds[entry["kind"]], 0 if name == US else entry.get("ratio", {}).get("middle", 0.5)


def _name(name: str, kind: str) -> str:
    return f"**{name}**" if kind == "us" else name


def _ratio(entry: dict[str, Any], key: str) -> str:
    found = entry.get(key)
    return NOTHING if not found else f"{found['middle']:.2f} ({found['low']:.2f}–{found['high']:.2f})"


def _number(entry: dict[str, Any], key: str, digits: int = 0) -> str:
    value = entry.get(key)
    return NOTHING if value is None else f"{round(value, digits):,.{digits}f}".removesuffix(".0")


def _contention(results: Results, pictures: bool) -> list[str]:
    found = results.get("contention", {})
    if not found:
        return []
    parts = [
        "## Sixteen processes after one lock",
        "",
        "Skips per second of all processes together. Another client holds the lock.",
        "",
    ]
    if pictures:
        parts += ["![Skips per second, as a share of the floor's](../benchmarks/skips.svg)", ""]
    rows = []
    for store, entries in _in_order(found):
        for name, entry in sorted(entries.items(), key=lambda item: -item[1]["per_second"]):
            label = f"{TITLES[store]}: {_name(name, entry['kind'])}"
            rows.append([label, _ratio(entry, "share"), _number(entry, "per_second")])
    return [*parts, *table(["", "share of the floor's", "skips per second"], rows)]


_COSTS = {
    "redis": {"commands": "commands, with those of scripts"},
    "postgres": {"wal_bytes": "bytes of log", "row_locks": "rows locked"},
    "mariadb": {"log_bytes": "bytes of log", "row_updates": "rows updated", "statements": "statements"},
    "mysql": {"log_bytes": "bytes of log", "row_updates": "rows updated", "statements": "statements"},
}


def _costs(results: Results) -> list[str]:
    found = results.get("cost", {})
    if not any(found.values()):
        return []
    parts = ["## Cost for the server", "", "The server counted these for each operation.", ""]
    for store, entries in _in_order(found):
        if not entries:
            continue
        header = [TITLES[store]]
        header += [f"{what}: {label}" for what in ("acquire + release", "skip") for label in _COSTS[store].values()]
        rows = [
            [name, *(_number(entry, f"{what}_{key}", 1) for what in ("cycle", "skip") for key in _COSTS[store])]
            for name, entry in sorted(entries.items(), key=lambda item: _rank(item[0]))
        ]
        parts += table(header, rows)
    return parts


def _history(results: Results) -> list[str]:
    found = results.get("history", {})
    if not found:
        return []
    rows = []
    for store, entries in _in_order(found):
        before, after = (entries.get(name, {}) for name in (history.WITHOUT, history.WITH))
        log = next((key for key in ("cycle_wal_bytes", "cycle_log_bytes") if key in after), "")
        pairs = [
            f"{_number(before, key)} → {_number(after, key)}" if key in after else NOTHING
            for key in ("p50_us", "cycle_round_trips", log)
        ]
        rows.append([TITLES[store], _ratio(after, "ratio"), *pairs])
    return [
        "## Cost of run history",
        "",
        f"For an acquire and release of a name that already keeps {history.KEPT} runs.",
        "",
        *table(["", "ratio to no history", "p50 µs", "round trips", "bytes of log"], rows),
    ]


def _grows(results: Results, pictures: bool) -> list[str]:
    parts: list[str] = []
    clients = results.get("clients", {})
    if any(results.get(figure) for figure in ("clients", "names", "records")):
        parts += ["## Growth", ""]
    if clients:
        parts += [
            "Each client is a process that acquires and releases a lock of its own. The figures are acquires and"
            " releases per second of all clients.",
            "",
        ]
        if pictures:
            parts += ["![Acquires and releases per second, by the number of clients](../benchmarks/clients.svg)", ""]
        numbers = sorted({number for sizes in clients.values() for number in sizes}, key=int)
        rows = []
        for store, sizes in _in_order(clients):
            for name, entry in next(iter(sizes.values())).items():
                cells = [_number(sizes.get(number, {}).get(name, {}), "per_second") for number in numbers]
                rows.append([f"{TITLES[store]}: {charts.named(name, entry)}", *cells])
        parts += table(["clients", *numbers], rows)
    for figure, what in (("names", "names that one client uses in turn"), ("records", "records in the store")):
        if results.get(figure):
            parts += _grows_with(figure, what, results[figure], pictures)
    return parts


def _grows_with(figure: str, what: str, found: dict[str, Any], pictures: bool) -> list[str]:
    """Compare each contender with itself, and at both ends with the floor."""
    note = " SecantusDB reads every document, which `mongod` does not." if "mongodb" in found else ""
    parts = [
        f"An acquire, by the number of {what}. Each contender is compared with its own time at the smallest number, and"
        f" with the floor in the same round.{note}",
        "",
    ]
    if pictures:
        parts += [f"![The cost of an acquire, by the number of {figure}](../benchmarks/{figure}.svg)", ""]
    numbers = sorted({number for sizes in found.values() for number in sizes}, key=int)
    rows = []
    for store, sizes in _in_order(found):
        fewest, most = min(sizes, key=int), max(sizes, key=int)
        for name, entry in sorted(sizes[fewest].items(), key=lambda item: _rank(item[0])):
            cells = [_ratio(sizes.get(number, {}).get(name, {}), "ratio") for number in numbers]
            to_floor = [_ratio(sizes[number].get(name, {}), "floor_ratio") for number in (fewest, most)]
            label = f"{TITLES[store]}: {_name(name, entry['kind'])}"
            rows.append([label, _number(entry, "acquire_us"), *cells, *to_floor])
    header = [figure, "µs with the fewest", *(f"{int(number):,}" for number in numbers)]
    return [*parts, *table([*header, "to the floor: fewest", "most"], rows)]


def _without_a_store(results: Results) -> list[str]:
    parts: list[str] = []
    found = results.get("decorators")
    if found:
        rows = [
            [
                _name(name, entry["kind"]),
                _ratio(entry, "ratio"),
                f"{entry['ns'] / 1000:.2f}",
                entry["lacks"] or NOTHING,
            ]
            for name, entry in _ordered(found)
        ]
        parts += [
            "## Without a store",
            "",
            "A call of a function that does nothing, under a lock in the memory of the process. The floor is a record"
            " of owner and end in a dict, under a mutex.",
            "",
            *table(["", "ratio to the floor", "µs", "lacks"], rows),
        ]
    found = results.get("imports")
    if found:
        rows = [
            [_name(name, entry["kind"]), _number(entry, "ms_over_bare"), _number(entry, "modules")]
            for name, entry in sorted(found.items(), key=lambda item: item[1]["ms_over_bare"])
        ]
        bytecode = all(entry.get("from_bytecode") for entry in found.values())
        words = "From bytecode, as at every start after the first." if bytecode else "Compiled again at each start."
        parts += ["## Importing", "", words, "", *table(["", "ms over Python alone", "modules"], rows)]
    found = results.get("memory")
    if found:
        parts += [
            "## Memory",
            "",
            *table(["10,000 names, each locked once", "KB left in the process"],
                   [[what, f"{kilobytes:,.0f}"] for what, kilobytes in found.items()]),
        ]  # fmt: skip
    return parts


def _life(results: Results) -> list[str]:
    found = results.get("life", {})
    rows = [
        [
            TITLES[store],
            _number(entry, "keep_alive_per_lease", 1),
            _number(entry, "leader_per_minute"),
            _number(entry, "follower_per_minute"),
        ]
        for store, entry in _in_order(found)
    ]
    if not rows:
        return []
    header = ["round trips", "kept alive, in the time of one lease", "leader, per minute", "follower, per minute"]
    notes = [
        "For SQLite the table counts operations of the provider." if "sqlite" in found else "",
        "About six a minute come from PyMongo, which watches its server." if "mongodb" in found else "",
    ]
    return [
        "## While it runs",
        "",
        'Keep-alive extends a lease three times in its length: with `lock_at_most_for="1m"`, three times a minute.'
        f" Leader and follower have the default settings. {' '.join(filter(None, notes))}".rstrip(),
        "",
        *table(header, rows),
    ]


def _absent(results: Results) -> list[str]:
    found = results.get("absent", [])
    if not found:
        return []
    rows = [[f"{one['name']} ({one['group']})", one["figure"], one["reason"].replace("|", "\\|")] for one in found]
    return ["## Not measured", "", *table(["", "what", "why"], rows)]


def _machine(results: Results) -> list[str]:
    meta = results["meta"]
    lines = [
        f"{meta['date']}, commit {meta['commit']}, {meta['seconds']} s. {meta['processors']} × {meta['processor']},"
        f" {meta['memory_gb']:g} GB, {meta['system']}, Python {meta['python']}. An `fsync` of 4 KB takes"
        f" {meta['fsync_us']:,} µs. The load was {meta['load_at_begin']:.1f} at the beginning and"
        f" {meta['load_at_end']:.1f} at the end; the benchmark itself causes one or two of it.",
        "",
        "; ".join(version for _, version in _in_order(meta["servers"])) + ".",
        "",
        ", ".join(f"{name} {version}" for name, version in meta["versions"].items()) + ".",
        "",
    ]
    return ["## The machine and the versions", "", *lines]


if __name__ == "__main__":
    write(json.loads((Path(sys.argv[1]) if len(sys.argv) > 1 else LAST).read_text()))
