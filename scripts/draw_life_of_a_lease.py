"""The life of a lease, three times: a long job with keep-alive, a short job with a minimum hold, and a crash."""

from __future__ import annotations

from draw_common import Picture, write

LEFT, UNIT = 150, 58  # the start of time, and the width of its unit
LANES = ("record in the store", "holder may believe", "task", "other replicas")
LANE = 26


class Panel:
    """Four lanes over one axis of time."""

    def __init__(self, picture: Picture, top: int, title: str, ends: float = 10) -> None:
        self.picture = picture
        self.top = top
        picture.text(20, top, title, "title")
        for number, lane in enumerate(LANES):
            y = self.y(number)
            picture.text(LEFT - 12, y + 13, lane, "small", anchor="end")
            picture.path(f"M{LEFT} {y + LANE - 4:g}H{self.x(ends):g}", "faint")

    def x(self, time: float) -> float:
        return LEFT + UNIT * time

    def y(self, lane: int) -> float:
        return self.top + 14 + lane * LANE

    def bar(self, lane: int, start: float, end: float, kind: str, words: str = "", *, opacity: float = 1) -> None:
        self.picture.rect(self.x(start), self.y(lane), self.x(end) - self.x(start), 18, kind, rx=3, opacity=opacity)
        if words:
            self.picture.text((self.x(start) + self.x(end)) / 2, self.y(lane) + 13.5, words, "on", anchor="middle")

    def skip(self, *times: float) -> None:
        for time in times:
            self.picture.text(self.x(time), self.y(3) + 13, "skip", "small", anchor="middle")

    def mark(self, time: float, words: str, *, anchor: str = "middle", kind: str = "small") -> None:
        """Mark a moment: a thin line through the lanes, and its name below."""
        bottom = self.y(len(LANES)) + 2
        self.picture.path(f"M{self.x(time):g} {self.y(0) - 3:g}V{bottom:g}", "dashed")
        self.picture.text(self.x(time), bottom + 14, words, kind, anchor=anchor)


def life_of_a_lease() -> Picture:
    picture = Picture(
        760,
        548,
        "The life of a lease",
        "A long job: acquire, heartbeats extend the lease, the task is done, release, and another replica may acquire. "
        "A short job: released at once, but held until the minimum hold is over. A crash: the record is held until "
        "lock_until, then another replica acquires with a higher fencing token. The holder always stops believing a "
        "little before the store could give the lock away.",
    )
    _long_job(Panel(picture, 30, "A long job, kept alive"))
    _short_job(Panel(picture, 210, "A short job: lock_at_least_for"))
    _crash(Panel(picture, 390, "A crash: lock_at_most_for"))
    return picture


def _long_job(panel: Panel) -> None:
    panel.mark(0, "acquire", anchor="start")
    for beat in range(1, 7):
        panel.mark(beat, "heartbeats, each third of the lease, extend it" if beat == 4 else "")
    panel.mark(7.2, "done: release")
    panel.mark(9, "lock_until, now void")
    panel.bar(0, 0, 7.2, "store", "held by replica-1, token 7")
    panel.bar(0, 7.2, 9, "store", opacity=0.25)
    panel.bar(1, 0, 7.2, "trust", "trusted")
    panel.bar(1, 7.2, 8.9, "trust", opacity=0.25)
    panel.bar(2, 0.1, 7.1, "good", "runs")
    panel.skip(0.6, 2.5, 4.5)
    panel.bar(3, 7.5, 10, "good", "acquires, token 8")


def _short_job(panel: Panel) -> None:
    panel.mark(0, "acquire", anchor="start")
    panel.mark(1, "done: release", anchor="start")
    panel.mark(4, "minimum hold over")
    panel.bar(0, 0, 4, "store", "held by replica-1, token 8")
    panel.bar(1, 0, 1, "trust")
    panel.bar(2, 0.1, 0.9, "good", "runs")
    panel.skip(0.6, 2, 3.1)
    panel.bar(3, 4.4, 6.9, "good", "acquires, token 9")
    panel.picture.text(panel.x(4.2), panel.y(1) + 13, "a replica whose clock is late is skipped, too", "small")


def _crash(panel: Panel) -> None:
    panel.mark(0, "acquire", anchor="start")
    panel.mark(5.8, "trust ends 1 % earlier", anchor="end")
    panel.mark(6, "lock_until", anchor="start")
    panel.bar(0, 0, 6, "store", "held by replica-1, token 9")
    panel.bar(1, 0, 5.8, "trust", "would be trusted")
    panel.bar(2, 0.1, 2.3, "good", "runs")
    panel.picture.cross(panel.x(2.3), panel.y(2) + 9)
    panel.picture.text(panel.x(2.55), panel.y(2) + 13, "kill −9", "bold bad")
    panel.skip(1, 3.5, 5)
    panel.bar(3, 6.4, 9, "good", "acquires, token 10")
    panel.picture.text(panel.x(6.2), panel.y(1) + 13, "if it was only stopped, and wakes up:", "small")
    panel.picture.text(panel.x(6.2), panel.y(2) + 13, "not trusted, and token 9 is refused", "small")


if __name__ == "__main__":
    write({"life-of-a-lease.svg": life_of_a_lease})
