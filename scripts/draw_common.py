"""Drawing tools for the documentation's pictures: SVG as text, readable on light and on dark.

Each ``draw_*.py`` writes its pictures to ``docs/images/``: ``python scripts/draw_readme_picture.py``. They are
committed, and a test draws them again and compares. A picture has its own background and follows
``prefers-color-scheme``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"

LIGHT = {
    "card": "#ffffff",
    "edge": "#d0d7de",
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#6e7781",
    "box": "#f6f8fa",
    "good": "#1a7f37",
    "store": "#0969da",
    "trust": "#8250df",
    "bad": "#cf222e",
    "on": "#ffffff",
}
DARK = {
    "card": "#161b22",
    "edge": "#3d444d",
    "ink": "#e6edf3",
    "muted": "#a5afba",
    "line": "#8b949e",
    "box": "#21262d",
    "good": "#3fb950",
    "store": "#58a6ff",
    "trust": "#bc8cff",
    "bad": "#ff7b72",
    "on": "#0d1117",
}
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def _colours(names: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in names.items())


STYLE = f"""\
  svg {{ {_colours(LIGHT)} }}
  @media (prefers-color-scheme: dark) {{ svg {{ {_colours(DARK)} }} }}
  text {{ font-family: {FONT}; font-size: 13px; fill: var(--ink); }}
  .mono {{ font-family: {MONO}; font-size: 12px; }}
  .small {{ font-size: 12px; fill: var(--muted); }}
  .title {{ font-size: 15px; font-weight: 600; }}
  .bold {{ font-weight: 600; }}
  .on {{ fill: var(--on); font-weight: 600; }}
  .good {{ fill: var(--good); }} .store {{ fill: var(--store); }}
  .trust {{ fill: var(--trust); }} .bad {{ fill: var(--bad); }}
  .card {{ fill: var(--card); stroke: var(--edge); }}
  .box {{ fill: var(--box); stroke: var(--line); stroke-width: 1.2; }}
  .dashed {{ fill: none; stroke: var(--line); stroke-dasharray: 5 4; }}
  .line {{ fill: none; stroke: var(--line); stroke-width: 1.5; }}
  .faint {{ fill: none; stroke: var(--edge); }}
  .go {{ fill: none; stroke: var(--good); stroke-width: 2; }}
  .stop {{ fill: none; stroke: var(--bad); stroke-width: 2.5; }}
  .tip {{ fill: var(--line); }}
  .go-tip {{ fill: var(--good); }}
"""


class Picture:
    """An SVG, built in steps."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._pieces = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(description)}</desc>',
            f"<style>\n{STYLE}</style>",
            "<defs>",
            *(
                f'<marker id="{tip}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
                f'markerUnits="userSpaceOnUse" orient="auto"><path class="{tip}" d="M0 0L10 5L0 10z"/></marker>'
                for tip in ("tip", "go-tip")
            ),
            "</defs>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        ]

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, *, rx: float = 6, opacity: float = 1
    ) -> None:
        faded = "" if opacity == 1 else f' opacity="{opacity}"'
        self._pieces.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{rx:g}"{faded}/>'
        )

    def text(self, x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> None:
        styled = f' class="{kind}"' if kind else ""
        placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._pieces.append(f'<text x="{x:g}" y="{y:g}"{styled}{placed}>{escape(words)}</text>')

    def path(self, shape: str, kind: str, *, arrow: bool = False) -> None:
        tip = f' marker-end="url(#{"go-tip" if kind == "go" else "tip"})"' if arrow else ""
        self._pieces.append(f'<path class="{kind}" d="{shape}"{tip}/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> None:
        self.path(f"M{x1:g} {y1:g}L{x2:g} {y2:g}", kind, arrow=True)

    def cross(self, x: float, y: float, size: float = 6) -> None:
        self.path(
            f"M{x - size:g} {y - size:g}l{2 * size:g} {2 * size:g}m0 {-2 * size:g}l{-2 * size:g} {2 * size:g}", "stop"
        )

    def svg(self) -> str:
        return "\n".join([*self._pieces, "</svg>", ""])


def write(pictures: dict[str, Callable[[], Picture]]) -> None:
    """Write each picture to its file in ``docs/images``, or in the directory given as the only argument."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    directory.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures.items():
        path = directory / name
        path.write_text(draw().svg(), encoding="utf-8")
        print(path)
