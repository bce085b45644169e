"""The live table, drawn with rich."""

from __future__ import annotations

from types import TracebackType

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demo.observation import Observation
from examples.demo.plan import JOBS, REPORT
from examples.demo.report import clock_time
from examples.demo.view import Board


class LiveTable:
    """One row for each fire time, redrawn at each event."""

    def __init__(self) -> None:
        self._console = Console()
        self._board = Board()
        self._live = Live(self._draw(), console=self._console, auto_refresh=False)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.refresh()
        self._live.stop()

    def show(self, seen: Observation) -> None:
        self._board.note(seen)

    def refresh(self) -> None:
        self._live.update(self._draw(), refresh=True)

    def _draw(self) -> Table:
        board = self._board
        table = Table(title="three replicas, two cron jobs: who runs, who skips", title_style="bold")
        table.box, table.padding, table.pad_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False  # fits 80 characters
        table.add_column("fire time")
        if not board.replicas:
            table.add_row("starting …")
        for job in JOBS:
            for number, replica in enumerate(board.replicas):
                title = Text(f"{job.name}\n" if number == 0 else "\n", "bold")
                name = Text(replica, "strike red" if replica in board.killed else "")
                table.add_column(title + name, min_width=len(replica))
        height = max(4, self._console.size.height - 9)
        for fire_time in sorted(board.rows)[-height:]:
            states = [board.state(fire_time, job.name, replica) for job in JOBS for replica in board.replicas]
            table.add_row(clock_time(fire_time), *map(_dressed, states))
        table.caption = "skipped because held: another replica is at it; done: another replica was faster"
        for replica, seen in board.killed.items():
            table.caption += f"\n{replica} (pid {seen.pid}) was killed with SIGKILL in the middle of {REPORT.name}"
        return table


def _dressed(state: str) -> Text:
    word, _, reason = state.partition(": ")
    match word:
        case "ran":
            return Text("● ran", "bold green")
        case "runs":
            return Text("● runs …", "green")
        case "KILLED":
            return Text("✗ KILLED", "bold red")
        case "skipped":
            return Text("done" if reason == "already ran" else reason, "bright_black")
    return Text(word, "red")
