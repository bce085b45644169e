"""The first picture of the README: three replicas attempt at the same moment, one of them runs."""

from __future__ import annotations

from draw_common import Picture, write


def three_replicas() -> Picture:
    picture = Picture(
        760,
        312,
        "Three replicas, one run",
        "At 02:00 three replicas call nightly_report(). Each asks the database for the lock. Replica 2 gets the lease "
        "and runs the job; replicas 1 and 3 are skipped.",
    )
    picture.text(110, 30, "every replica, at 02:00", "small", anchor="middle")
    picture.text(375, 30, "the database you have", "small", anchor="middle")
    picture.text(640, 30, "what happens", "small", anchor="middle")
    for number in (1, 2, 3):
        y = 90 * number - 44  # the top of this replica's boxes
        middle = y + 33
        runs = number == 2
        picture.rect(20, y, 180, 66, "box")
        picture.text(34, y + 27, f"replica-{number}", "bold")
        picture.text(34, y + 49, "nightly_report()", "mono")
        picture.arrow(200, middle, 283, 169 + 28 * (number - 2), "go" if runs else "line")
        picture.arrow(467, 169 + 28 * (number - 2), 548, middle, "go" if runs else "line")
        if runs:
            picture.rect(550, y, 190, 66, "good")
            picture.text(645, y + 29, "runs", "on", anchor="middle")
            picture.text(645, y + 49, "42 pages", "on", anchor="middle")
        else:
            picture.rect(550, y, 190, 66, "dashed")
            picture.text(645, y + 29, "skipped", "bold", anchor="middle")
            picture.text(645, y + 49, "returns None at once", "small", anchor="middle")
    for y, words in ((96, "acquire"), (161, "acquire"), (248, "acquire")):
        picture.text(258 if y > 200 else 246, y, words, "small", anchor="middle")
    picture.text(508, 96, "held", "small", anchor="middle")
    picture.text(508, 161, "lease", "small good bold", anchor="middle")
    picture.text(496, 248, "held", "small", anchor="middle")
    picture.path("M285 102v134c0 10 40 18 90 18s90-8 90-18v-134", "box")  # a drum
    picture.path("M285 102c0-10 40-18 90-18s90 8 90 18s-40 18-90 18s-90-8-90-18z", "box")
    picture.text(375, 148, "nightly-report", "mono bold", anchor="middle")
    picture.text(375, 172, "held by replica-2", "", anchor="middle")
    picture.text(375, 194, "until 02:30 at most", "", anchor="middle")
    picture.text(375, 216, "fencing token 8", "small", anchor="middle")
    return picture


if __name__ == "__main__":
    write({"three-replicas.svg": three_replicas})
