"""``python -m tests.page.picture`` draws the picture of the page in docs/how-to/page.md."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from shedlock_py import LockRequest
from tests.page.browser import chromium, served, tab
from tests.page.sample import WEB, Sample

WIDTH, HEIGHT = 1000, 560
TARGET = Path(__file__).parents[2] / "docs" / "images" / "page.png"


def week() -> Sample:
    """A job of one week, without hostile data."""
    sample = Sample()
    for number in range(44):
        holder = WEB[(number * 7 // 3) % 3]
        match number:
            case 12 | 29:
                sample.ran("sync-orders", holder, 380, "failed", "ConnectionError: no route to host")
            case 34:
                sample.vanished("sync-orders", holder)
            case 38:
                sample.ran("sync-orders", holder, 900, "cancelled")
            case _:
                sample.ran("sync-orders", holder, 600 + 61 * (number % 9))
        sample.clock.advance("3h30m")
    assert sample.provider.acquire(LockRequest("sync-orders", "30m", holder=WEB[1]))
    sample.clock.advance("7m")
    return sample


def draw(browser: Browser, target: Path) -> None:
    options = {"viewport": {"width": WIDTH, "height": HEIGHT}, "color_scheme": "light"}
    with served(week()) as address, tab(browser, address, **options) as found:
        found.go("/job?name=sync-orders")
        found.page.screenshot(path=target)


if __name__ == "__main__":
    with chromium() as browser:
        draw(browser, TARGET)
    print(TARGET)
