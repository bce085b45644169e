"""The charts of docs/results/benchmarks.md, in the other pictures' style: readable on light and on dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.draw_common import Picture

WIDTH = 760
LEFT, RIGHT = 250, 80  # the start of the bars, and the room for their numbers
ROW = 24
KINDS = {"us": "store", "floor": "tip", "peer": "tip", "context": "tip"}
SHOWN_AT_MOST = 4.0
"""The ratio where a bar is cut off: a far longer bar would make the others look alike."""
STORES = {
    "redis": "Redis",
    "postgres": "PostgreSQL",
    "mariadb": "MariaDB",
    "mysql": "MySQL",
    "sqlite": "SQLite",
    "mongodb": "MongoDB",
    "etcd": "etcd",
    "dynamodb": "DynamoDB Local",
    "s3": "S3 (SeaweedFS)",
    "kubernetes": "Kubernetes",
}
LINES = ("bad", "store", "trust", "muted", "good")


def draw(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the charts that the results have figures for, by file name."""
    drawn = {}
    for store, title in STORES.items():
        entries = results.get("latency", {}).get(store)
        if entries:
            drawn[f"ratio-{store}.svg"] = ratios(title, entries)
    if results.get("contention"):
        drawn["skips.svg"] = skips(results["contention"])
    if results.get("clients"):
        drawn["clients.svg"] = clients(results["clients"])
    for figure, what, fewest in (
        ("names", "names in use", "one name"),
        ("records", "records in the store", "ten records"),
    ):
        if set(results.get(figure, {})) - {"mongodb"}:
            drawn[f"{figure}.svg"] = growth(results[figure], what, fewest)
    return drawn


class Chart(Picture):
    """A picture with a chart's curves."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        super().__init__(width, height, title, description)
        curves = "".join(f" .{kind}-curve {{ stroke: var(--{kind}); }}" for kind in LINES)
        self._pieces.append(
            f"<style>.curve {{ fill: none; stroke-width: 2; }}{curves} .muted {{ fill: var(--muted); }}"
            " .spread { fill: none; stroke: var(--ink); stroke-width: 1.5; opacity: 0.6; }"
            " .over { stroke: var(--card); stroke-width: 4; paint-order: stroke; }</style>"
        )


# Bars


class Bars:
    """Horizontal bars. Their numbers are drawn last, over all lines."""

    def __init__(self, picture: Picture, top: float, longest: float, right: float = RIGHT) -> None:
        self.picture = picture
        self.y = top
        self.scale = (WIDTH - LEFT - right) / longest
        self.longest = longest
        self._numbers: list[tuple[float, float, str, str]] = []

    def title(self, text: str) -> None:
        self.picture.text(20, self.y + 4, text, "title")
        self.y += 16

    def bar(self, label: str, value: float, number: str, kind: str, low: float = 0, high: float = 0) -> None:
        middle = self.y + ROW / 2
        shown = min(value, self.longest)
        is_ours = kind == "store"
        self.picture.text(LEFT - 10, middle + 4.5, label, "bold" if is_ours else "", anchor="end")
        self.picture.rect(
            LEFT, middle - 7.5, max(1.5, shown * self.scale), 15, kind, rx=2, opacity=1 if is_ours else 0.55
        )
        end = LEFT + shown * self.scale
        if high > low and high <= self.longest:
            self.picture.path(f"M{LEFT + low * self.scale:g} {middle:g}H{LEFT + high * self.scale:g}", "spread")
            end = max(end, LEFT + high * self.scale)
        if value > self.longest:
            self.picture.path(f"M{end - 9:g} {middle - 9:g}l-5 18m5 -18", "line")
        self._numbers.append((end + 7, middle + 4.5, number, "bold over" if is_ours else "small over"))
        self.y += ROW

    def mark(self, value: float, top: float, words: str = "") -> None:
        x = LEFT + value * self.scale
        self.picture.path(f"M{x:g} {top:g}V{self.y:g}", "dashed")
        if words:
            self.picture.text(x, self.y + 14, words, "small", anchor="middle")
            self.y += 20

    def finish(self) -> None:
        for x, y, number, kind in self._numbers:
            self.picture.text(x, y, number, kind)


def named(name: str, entry: Mapping[str, Any]) -> str:
    return name if entry.get("has_lease", True) else f"{name} (no lease)"


def ratios(title: str, entries: Mapping[str, Any]) -> str:
    shown = sorted(
        ((name, entry) for name, entry in entries.items() if entry.get("ratio") and entry["kind"] != "floor"),
        key=lambda item: item[1]["ratio"]["middle"],
    )
    longest = max(1.5, min(SHOWN_AT_MOST, max((entry["ratio"]["middle"] for _, entry in shown), default=1) * 1.05))
    described = ", ".join(f"{name} {entry['ratio']['middle']:.2f}" for name, entry in shown)
    picture = Chart(
        WIDTH,
        70 + ROW * len(shown),
        f"{title}: acquire and release, ratio to the floor",
        f"How many times as long as the store's own driver doing the least that a lease needs: {described}.",
    )
    bars = Bars(picture, 28, longest)
    bars.title(f"{title}: acquire and release, compared with the floor (shorter is faster)")
    top = bars.y
    for name, entry in shown:
        ratio = entry["ratio"]
        kind = KINDS[entry["kind"]]
        bars.bar(named(name, entry), ratio["middle"], f"{ratio['middle']:.2f}", kind, ratio["low"], ratio["high"])
    bars.mark(1, top, "floor")
    bars.finish()
    return picture.svg()


def skips(found: Mapping[str, Mapping[str, Any]]) -> str:
    panels = {
        store: [item for item in found[store].items() if item[1].get("share")] for store in STORES if store in found
    }
    rows = sum(len(entries) for entries in panels.values())
    longest = max((entry["share"]["middle"] for entries in panels.values() for _, entry in entries), default=1.0)
    picture = Chart(
        WIDTH,
        60 + ROW * rows + 26 * len(panels),
        "Skips per second of sixteen processes",
        "As a share of what the store's own driver manages, for each store: "
        + "; ".join(
            f"{STORES[store]}: " + ", ".join(f"{name} {entry['share']['middle']:.2f}" for name, entry in entries)
            for store, entries in panels.items()
        ),
    )
    bars = Bars(picture, 28, max(1.0, longest), right=130)
    bars.title("Skips of sixteen processes after one lock, as a share of the floor's (longer is faster)")
    for store, entries in panels.items():
        bars.y += 22
        picture.text(20, bars.y, STORES[store], "bold")
        bars.y += 4
        top = bars.y
        for name, entry in sorted(entries, key=lambda item: -item[1]["share"]["middle"]):
            number = f"{entry['share']['middle']:.2f} · {entry['per_second']:,.0f}/s"
            bars.bar(named(name, entry), entry["share"]["middle"], number, KINDS[entry["kind"]])
        bars.mark(1, top)
    bars.finish()
    return picture.svg()


# Lines


class Plot:
    """A line chart. The x axis is logarithmic; the y axis is logarithmic, or begins at zero."""

    def __init__(
        self, picture: Picture, box: tuple[float, float, float, float], xs: Sequence[float], ys: Sequence[float]
    ) -> None:
        self.picture = picture
        self.left, self.top, self.width, self.height = box
        self.xs, self.ys = xs, ys
        self.by_powers = ys[0] > 0
        """Whether the y axis is logarithmic."""

    def x(self, value: float) -> float:
        low, high = math.log10(self.xs[0]), math.log10(self.xs[-1])
        return self.left + self.width * (math.log10(value) - low) / (high - low or 1)

    def y(self, value: float) -> float:
        if self.by_powers:
            low, high = math.log10(self.ys[0]), math.log10(self.ys[-1])
            return self.top + self.height * (1 - (math.log10(value) - low) / (high - low or 1))
        return self.top + self.height * (1 - (value - self.ys[0]) / (self.ys[-1] - self.ys[0] or 1))

    def axes(self, x_words: str, number: str = "{:,.0f}") -> None:
        for value in self.ys:
            self.picture.path(f"M{self.left:g} {self.y(value):g}h{self.width:g}", "faint")
            self.picture.text(self.left - 8, self.y(value) + 4, number.format(value), "small", anchor="end")
        for value in self.xs:
            self.picture.text(self.x(value), self.top + self.height + 18, short(value), "small", anchor="middle")
        self.picture.text(self.left + self.width / 2, self.top + self.height + 36, x_words, "small", anchor="middle")

    def line(self, points: Sequence[tuple[float, float]], kind: str, label: str, *, shift: float = 0) -> None:
        if not points:
            return
        shape = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        self.picture.path(f"M{shape}", f"curve {kind}-curve")
        for x, y in points:
            self.picture.path(f"M{self.x(x) - 3:.1f} {self.y(y):.1f}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", kind)
        x, y = points[-1]
        self.picture.text(self.x(x) + 9, self.y(y) + 4 + shift, label, f"small {kind}")


def short(value: float) -> str:
    """Write a number shortly: six digits would run into their neighbours."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= max(size, 1e5):
            return f"{value / size:g} {letter}"
    return f"{value:,.0f}"


def nice(highest: float, steps: int = 4) -> list[float]:
    """Return round numbers from zero to at least ``highest``."""
    raw = max(highest, 1e-9) / steps
    size: float = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    return [step * n for n in range(math.ceil(highest / step - 1e-9) + 1)]


def apart(ends: Sequence[float], least: float = 14) -> list[float]:
    """Return the shifts that keep labels, at these heights, from covering each other."""
    shifts = [0.0] * len(ends)
    last = -math.inf
    for place in sorted(range(len(ends)), key=lambda n: ends[n]):
        wanted = max(ends[place], last + least)
        shifts[place] = wanted - ends[place]
        last = wanted
    return shifts


def _lines(plot: Plot, lines: Sequence[tuple[Sequence[tuple[float, float]], str, str]]) -> None:
    lines = [line for line in lines if line[0]]
    shifts = apart([plot.y(points[-1][1]) for points, _, _ in lines])
    for (points, kind, label), shift in zip(lines, shifts, strict=True):
        plot.line(points, kind, label, shift=shift)


def clients(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    height = 210
    picture = Chart(
        WIDTH,
        40 + height * len(found),
        "Acquires and releases per second, by the number of clients",
        "Each client is a process with a lock of its own. "
        + "; ".join(f"{STORES[store]}: {', '.join(next(iter(sizes.values())))}" for store, sizes in _sorted(found)),
    )
    picture.text(
        20, 28, "Acquires and releases per second, by the number of client processes (higher is faster)", "title"
    )
    for place, (store, sizes) in enumerate(_sorted(found)):
        top = 64 + height * place
        numbers = sorted(map(int, sizes))
        highest = max(entry["per_second"] for entries in sizes.values() for entry in entries.values())
        plot = Plot(picture, (110, top, 460, height - 76), numbers, nice(highest))
        picture.text(20, top - 12, STORES[store], "bold")
        plot.axes("clients")
        lines = []
        for name in next(iter(sizes.values())):
            points = [
                (number, sizes[str(number)][name]["per_second"]) for number in numbers if name in sizes[str(number)]
            ]
            kind = {"floor": "muted", "shedlock_py": "store"}.get(name, "trust")
            lines.append((points, kind, named(name, next(iter(sizes.values()))[name])))
        _lines(plot, lines)
    return picture.svg()


def growth(found: Mapping[str, Mapping[str, Any]], what: str, fewest: str) -> str:
    """Draw a panel for each store, with each contender's cost relative to its own cost at the smallest size."""
    # SecantusDB is left out: unlike mongod, it reads every document.
    shown = [(store, sizes) for store, sizes in _sorted(found) if store != "mongodb"]
    ratios = [
        entry["ratio"]["middle"] for _, sizes in shown for entries in sizes.values() for entry in entries.values()
    ]
    heights = nice(max(1.5, *ratios))
    picture = Chart(
        WIDTH,
        52 + 190 * math.ceil(len(shown) / 2),
        f"The cost of an acquire, by the number of {what}",
        f"Each compared with itself at {fewest}: "
        + "; ".join(f"{STORES[store]} with {_most(sizes)}: {_at_most(sizes)}" for store, sizes in shown),
    )
    picture.text(20, 28, f"An acquire, compared with the same at {fewest} (lower is better)", "title")
    for place, (store, sizes) in enumerate(shown):
        left, top = 62 + 368 * (place % 2), 76 + 190 * (place // 2)
        plot = Plot(picture, (left, top, 192, 100), sorted(map(float, sizes)), heights)
        picture.text(left - 42, top - 14, STORES[store], "bold")
        plot.axes(what, "{:g}")
        lines = []
        for name in next(iter(sizes.values())):
            points = [
                (float(size), sizes[size][name]["ratio"]["middle"])
                for size in sorted(sizes, key=int)
                if name in sizes[size]
            ]
            kind = {"floor": "muted", "shedlock_py": "store"}.get(name, "trust")
            lines.append((points, kind, f"{name} {points[-1][1]:.2f}"))
        _lines(plot, lines)
    return picture.svg()


def _most(sizes: Mapping[str, Any]) -> str:
    return f"{max(map(int, sizes)):,}"


def _at_most(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {entry['ratio']['middle']:.2f}" for name, entry in sizes[max(sizes, key=int)].items())


def _sorted(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the stores in their usual order."""
    return [(store, found[store]) for store in STORES if store in found]


def scaling(
    panels: Sequence[tuple[str, Sequence[tuple[str, Sequence[tuple[float, float]]]]]],
    limits: Mapping[float, str],
    title: str,
) -> str:
    """Draw seconds by the number of replicas, both logarithmic. ``limits`` are horizontal lines."""
    height = 290
    picture = Chart(
        WIDTH,
        44 + height * len(panels),
        "What helps when thousands of replicas attempt at once",
        f"{title}. "
        + "; ".join(
            f"{store}, {points[-1][0]:,.0f} replicas: "
            + ", ".join(f"{name} {values[-1][1]:.3f} s" for name, values in lines)
            for store, lines in panels
            for points in [lines[0][1]]
        ),
    )
    picture.text(20, 28, title, "title")
    for place, (store, lines) in enumerate(panels):
        top = 68 + height * place
        xs = [x for x, _ in lines[0][1]]
        ys = [y for _, points in lines for _, y in points]
        powers = [10.0**n for n in range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(*ys, *limits))) + 1)]
        plot = Plot(picture, (80, top, 440, height - 80), xs, powers)
        picture.text(20, top - 14, store, "bold")
        plot.axes("replicas", "{:g} s")
        for limit, words in limits.items():
            picture.path(f"M{plot.left} {plot.y(limit):.1f}h{plot.width}", "dashed")
            picture.text(plot.left + 6, plot.y(limit) - 5, words, "small over")
        _lines(plot, [(points, kind, name) for kind, (name, points) in zip(LINES, lines, strict=False)])
    return picture.svg()
