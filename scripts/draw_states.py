"""The states of a lease, of a lease with keep-alive, and of a node in an election."""

from __future__ import annotations

from draw_common import Picture, write

HALF_WIDTH, HALF_HEIGHT = 58, 18


class Diagram:
    """Rounded boxes, and arrows with the causes of the transitions."""

    def __init__(self, height: int, title: str, description: str) -> None:
        self.picture = Picture(760, height, title, description)

    def state(self, x: float, y: float, name: str, kind: str = "box") -> None:
        words = "bold" if kind == "box" else "on"
        self.picture.rect(x - HALF_WIDTH, y - HALF_HEIGHT, 2 * HALF_WIDTH, 2 * HALF_HEIGHT, kind, rx=18)
        self.picture.text(x, y + 4.5, name, words, anchor="middle")

    def begin(self, x: float, y: float) -> None:
        self.picture.path(f"M{x - 5:g} {y:g}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z", "tip")

    def arrow(self, shape: str) -> None:
        self.picture.path(shape, "line", arrow=True)

    def loop(self, x: float, y: float, *labels: str) -> None:
        """Draw an arrow from the top of a state back to it."""
        top = y - HALF_HEIGHT
        self.arrow(f"M{x - 26:g} {top:g}c-8 -34 60 -34 52 -1")
        for number, label in enumerate(reversed(labels)):
            self.label(x, top - 31 - 15 * number, label)

    def label(self, x: float, y: float, words: str, *, anchor: str = "middle") -> None:
        self.picture.text(x, y, words, "small", anchor=anchor)


def lease() -> Picture:
    diagram = Diagram(
        252,
        "States of a lease",
        "Acquire granted: trusted. Extensions and heartbeats keep it trusted, and so does a failed heartbeat, which is "
        "tried again. When the trust window is over it is doubted, though the store still has it. At lock_until it is "
        "expired. From trusted and doubted a release leads to released. Taken over or freed by force: lost.",
    )
    diagram.begin(30, 110)
    diagram.arrow("M36 110H150")
    diagram.label(90, 102, "acquire granted")
    diagram.state(210, 110, "trusted", "good")
    diagram.loop(210, 110, "extended; or a heartbeat failed", "(unreachable: it is tried again)")
    diagram.arrow("M268 110H420")
    diagram.label(344, 102, "trust window over")
    diagram.state(480, 110, "doubted")
    diagram.label(480, 82, "the store still has it")
    diagram.arrow("M538 110H630")
    diagram.label(582, 102, "lock_until")
    diagram.state(690, 110, "expired")
    diagram.arrow("M180 128V192")
    diagram.label(172, 158, "taken or freed", anchor="end")
    diagram.label(172, 173, "by force", anchor="end")
    diagram.state(180, 212, "lost", "bad")
    diagram.arrow("M240 128L420 200")
    diagram.label(350, 158, "release", anchor="start")
    diagram.arrow("M480 128V192")
    diagram.label(488, 164, "release", anchor="start")
    diagram.state(480, 212, "released")
    return diagram.picture


def kept_alive() -> Picture:
    diagram = Diagram(
        276,
        "States of a lease that is kept alive",
        "Acquire granted: kept. A heartbeat that is answered keeps it. One that fails or is not answered in a sixth of "
        "the lease makes it unreachable, until a heartbeat is answered. It is lost when the store refuses (revoked), "
        "when the trust window ends while it is unreachable (unreachable), or when it ends and no heartbeat was sent "
        "(overrun). When the task ends it is released.",
    )
    diagram.begin(30, 80)
    diagram.arrow("M36 80H150")
    diagram.label(90, 72, "acquire granted")
    diagram.state(210, 80, "kept", "good")
    diagram.loop(210, 80, "heartbeat answered")
    diagram.arrow("M268 74H520")
    diagram.label(384, 50, "heartbeat failed, or not")
    diagram.label(384, 65, "answered in a sixth of the lease")
    diagram.arrow("M520 88H268")
    diagram.label(384, 104, "heartbeat answered")
    diagram.state(580, 80, "unreachable")
    diagram.label(580, 50, "not lost: nobody else can get it")
    diagram.arrow("M240 98L380 203")
    diagram.label(312, 130, "revoked: the store refused;", anchor="start")
    diagram.label(326, 145, "overrun: no heartbeat was sent", anchor="start")
    diagram.arrow("M572 98L462 204")
    diagram.label(556, 130, "revoked: the store refused;", anchor="start")
    diagram.label(542, 145, "unreachable: trust window over", anchor="start")
    diagram.state(420, 222, "lost", "bad")
    diagram.arrow("M190 98V202")
    diagram.label(182, 150, "the task ended", anchor="end")
    diagram.state(190, 222, "released")
    diagram.arrow("M638 80H740V258H190V242")
    diagram.label(600, 251, "the task ended")
    return diagram.picture


def elector() -> Picture:
    diagram = Diagram(
        372,
        "Life of a node in an election",
        "Start: following. When the lease was free and is granted: leading. take_over() while somebody led: taking "
        "over, until the former leader cannot believe any more; then leading. Leading is renewed; a renewal that is "
        "refused, or renew_deadline reached, leads back to following. resign(), stop() or an exception of "
        "on_started_leading: handing over, renewed while callbacks still run; then released and resting. Demoted with "
        "a cooldown: resting. After the rest: following.",
    )
    diagram.begin(30, 70)
    diagram.arrow("M36 70H100")
    diagram.label(66, 62, "start")
    diagram.state(160, 70, "following")
    diagram.arrow("M218 62H540")
    diagram.label(380, 54, "the lease was free, and is granted")
    diagram.arrow("M540 78H218")
    diagram.label(380, 95, "lost: revoked, or renew_deadline reached")
    diagram.state(600, 70, "leading", "good")
    diagram.loop(600, 70, "renewed")
    diagram.arrow("M195 88L330 150")
    diagram.label(276, 114, "take_over(), while somebody led", anchor="start")
    diagram.state(380, 168, "taking over")
    diagram.arrow("M430 157L560 90")
    diagram.label(450, 168, "the former leader cannot", anchor="start")
    diagram.label(450, 183, "believe any more", anchor="start")
    diagram.label(390, 212, "(overtaken itself, or the store is away: following)")
    diagram.arrow("M646 88L646 262")
    diagram.label(638, 238, "resign(), stop(), or", anchor="end")
    diagram.label(638, 253, "on_started_leading raises", anchor="end")
    diagram.state(640, 282, "handing over")
    diagram.label(640, 318, "renewed, while callbacks still run")
    diagram.arrow("M582 282H222")
    diagram.label(400, 274, "callbacks have returned: released")
    diagram.label(400, 300, "after stop(): leaves the election")
    diagram.state(160, 282, "resting")
    diagram.arrow("M130 88V262")
    diagram.label(122, 172, "demoted with", anchor="end")
    diagram.label(122, 187, "a cooldown", anchor="end")
    diagram.arrow("M172 264V90")
    diagram.label(180, 232, "rest over", anchor="start")
    diagram.label(160, 346, "stop(), while following or resting: leaves the election at once", anchor="start")
    return diagram.picture


if __name__ == "__main__":
    write(
        {
            "states-of-a-lease.svg": lease,
            "states-of-a-kept-lease.svg": kept_alive,
            "states-of-a-node.svg": elector,
        }
    )
