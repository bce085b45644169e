"""The page in Chromium: its look, each button, live refresh, use without JavaScript, and axe's findings."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from shedlock_py import LockRecord, LockRequest
from shedlock_py.page import app
from shedlock_py.page.report import report
from tests.page.browser import axe_findings, chromium, served, tab
from tests.page.picture import HEIGHT, WIDTH, draw, week
from tests.page.sample import Sample

pytestmark = pytest.mark.slow("in Chromium")

VIEWS = {
    "jobs": "/",
    "job": "/job?name=sync-orders",
    "hostile": "/job?name=%3Cscript%3Ealert(1)%3C%2Fscript%3E%22'%26",
    "paused": "/job?name=send-mails",
    "leaders": "/leaders",
    "store": "/store",
    "pause": "/change/pause?name=clean-up",
    "free": "/change/force_release?name=import",
    "prune": "/change/prune?unused_for=0s",
    "problem": "/job?name=nosuch",
}


def looks(*in_make_test: tuple[int, str]) -> pytest.MarkDecorator:
    """Widths and colours. The combinations that `make test` leaves out show the same facts."""
    return pytest.mark.parametrize(
        ("width", "scheme"),
        [
            pytest.param(
                width,
                scheme,
                marks=[] if (width, scheme) in in_make_test else pytest.mark.matrix("other widths and colours"),
            )
            for width in (400, 800, 1280, 2000)
            for scheme in ("light", "dark")
        ],
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def address(sample: Sample) -> Iterator[str]:
    with served(sample) as address:
        yield address


def stop_the_clock(page: Page) -> None:
    """Let only ``page.clock.run_for`` advance the page's timers, however slow the machine is."""
    page.clock.install(time=0)
    page.clock.pause_at(1000)


def record_of(sample: Sample, name: str) -> LockRecord:
    record = sample.provider.record(name)
    assert record is not None
    return record


@looks((1280, "light"))
def test_it_fits_and_complains_about_nothing(
    browser: Browser, address: str, tmp_path: Path, width: int, scheme: Any
) -> None:
    """The screenshots are in the temporary directory of the test."""
    with tab(browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme) as found:
        for name, path in VIEWS.items():
            found.go(path)
            picture = found.page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
            assert not found.has_overflow(), name
            assert len(picture) > 5000
        is_dark = found.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert is_dark is (scheme == "dark")
        assert found.complaints == ["Failed to load resource: the server responded with a status of 404 (Not Found)"]


@looks((400, "dark"))
def test_axe_finds_nothing_serious(browser: Browser, address: str, width: int, scheme: Any) -> None:
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme, "bypass_csp": True}
    with tab(browser, address, **options) as found:
        for path in VIEWS.values():
            found.go(path)
            assert axe_findings(found.page) == [], path
            assert not found.has_overflow(), path


@pytest.mark.matrix("the report has the page's style")
@pytest.mark.parametrize("width", [400, 1280])
def test_axe_finds_nothing_serious_in_a_report(browser: Browser, tmp_path: Path, width: int) -> None:
    (tmp_path / "report.html").write_text(report(week().provider, ["sync-orders"]))
    with tab(browser, tmp_path.as_uri(), viewport={"width": width, "height": 800}) as found:
        found.go("/report.html")
        assert not found.has_overflow()
        assert found.complaints == []
    with tab(browser, tmp_path.as_uri(), viewport={"width": width, "height": 800}, bypass_csp=True) as found:
        found.go("/report.html")
        assert axe_findings(found.page) == []


@pytest.mark.parametrize(
    "has_scripts",
    [
        pytest.param(True, id="with JavaScript", marks=pytest.mark.matrix("the same buttons")),
        pytest.param(False, id="without JavaScript"),
    ],
)
def test_every_button_does_what_it_says(browser: Browser, address: str, sample: Sample, has_scripts: bool) -> None:
    with tab(browser, address, java_script_enabled=has_scripts) as found:
        page = found.page
        found.go("/")
        expect(page.get_by_role("button", name="Pause refresh")).to_be_visible(visible=has_scripts)
        page.get_by_label("Search").fill("clean")
        page.get_by_label("Show").select_option("free")
        page.get_by_role("button", name="Find").click()
        expect(page.locator("td.name")).to_have_text(["clean-up"])
        page.get_by_role("link", name="Took").click()
        expect(page.locator("th.took")).to_have_attribute("aria-sort", "ascending")
        page.get_by_role("link", name="clean-up").click()
        # pause, again, resume
        page.get_by_role("link", name="Pause…").click()
        page.get_by_label("For how long").fill("2h")
        page.get_by_label("Why").fill("a look at it")
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.locator("main")).to_contain_text("a look at it")
        assert record_of(sample, "clean-up").is_paused
        page.get_by_role("link", name="Pause again…").click()
        page.get_by_role("link", name="Cancel").click()
        page.get_by_role("link", name="Resume…").click()
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("link", name="Resume…")).to_have_count(0)
        assert not record_of(sample, "clean-up").is_held
        # free by force
        found.go("/job?name=import")
        page.get_by_role("link", name="Free by force…").click()
        page.get_by_role("button", name="Free by force").click()
        expect(page.get_by_role("link", name="Free by force…")).to_have_count(0)
        assert not record_of(sample, "import").is_held
        # demote
        page.get_by_role("link", name="Leaders").click()
        page.get_by_role("link", name="Demote…").click()
        page.get_by_role("button", name="Demote").click()
        page.get_by_role("link", name="Leaders").click()
        expect(page.locator("main")).to_contain_text("web-2 was demoted")
        # the store, prune
        page.get_by_role("link", name="Store").click()
        page.get_by_role("button", name="Try a lock").click()
        expect(page.locator("main")).to_contain_text("a second holder is refused")
        page.get_by_role("link", name="Jobs").click()
        page.get_by_role("link", name="Prune…").click()
        page.get_by_label("Not held for").fill("10h")
        page.get_by_role("button", name="Count again").click()
        page.get_by_role("button", name="Delete 1 record").click()
        expect(page.get_by_role("link", name="fetch-rates")).to_have_count(0)
        assert sample.provider.record("fetch-rates") is None
        assert found.complaints == []


def test_the_page_refreshes_itself_until_it_is_paused(browser: Browser, address: str, sample: Sample) -> None:
    with tab(browser, address) as found:
        page = found.page
        stop_the_clock(page)
        found.go("/")
        state = page.locator("tr", has_text="clean-up").locator("td.state")
        expect(state).to_have_text("free")
        page.get_by_role("link", name="import").focus()
        lease = sample.provider.acquire(LockRequest("clean-up", "1h", holder="web-9:9"))
        assert lease is not None
        page.clock.run_for(5100)
        expect(state).to_have_text("held")
        expect(page.get_by_role("link", name="import")).to_be_focused()
        button = page.get_by_role("button", name="Pause refresh")
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        sample.provider.release(lease)
        with page.expect_event("requestfinished", lambda request: request.url.endswith("/"), timeout=20_000):
            page.clock.run_for(20_000)
            expect(state).to_have_text("held")  # unchanged since the pause of the refresh
            button.click()
        expect(state).to_have_text("free")
        assert found.complaints == []


def test_old_data_is_marked_also_while_text_is_selected(browser: Browser, address: str) -> None:
    with tab(browser, address) as found:
        page = found.page
        stop_the_clock(page)
        found.go("/")
        status = page.locator("#status")
        page.locator("td.name").first.select_text()
        page.clock.run_for(14_000)
        expect(status).not_to_have_class("bad")
        page.clock.run_for(2_000)
        expect(status).to_have_class("bad")
        expect(status).to_contain_text("16 s old")
        page.evaluate("document.getSelection().removeAllRanges()")
        page.clock.run_for(5100)
        expect(status).not_to_have_class("bad")
        expect(status).to_contain_text(re.compile(r" · \d s old$"))


def test_a_store_that_hangs_and_comes_back(browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data stay and get old. An error page is replaced as a whole."""
    can_read, records = threading.Event(), sample.provider.records
    monkeypatch.setattr(sample.provider, "records", lambda prefix="": can_read.wait(20) and records(prefix))
    monkeypatch.setattr(app, "LONGEST_READ", 0.2)
    can_read.set()
    with served(sample) as address, tab(browser, address) as healthy, tab(browser, address) as broken:
        for each in (healthy, broken):
            stop_the_clock(each.page)
        healthy.go("/")
        can_read.clear()
        broken.go("/")
        expect(broken.page.locator("h1")).to_have_text("The store does not reply")
        healthy.page.clock.run_for(5100)
        expect(healthy.page.locator("#status")).to_contain_text("not refreshed: The store does not reply")
        expect(healthy.page.locator("#status")).to_have_class("bad")
        expect(healthy.page.locator("h1")).to_have_text("Jobs")
        expect(healthy.page.get_by_role("link", name="clean-up")).to_be_visible()
        can_read.set()
        for each in (healthy, broken):
            each.page.clock.run_for(5100)
            expect(each.page.locator("h1")).to_have_text("Jobs")
            expect(each.page.get_by_role("link", name="clean-up")).to_be_visible()
            expect(each.page.locator("#status")).not_to_contain_text("not refreshed")


def test_the_reply_to_a_form_is_not_refreshed(browser: Browser, address: str, sample: Sample) -> None:
    with tab(browser, address) as found:
        page = found.page
        found.go("/change/resume?name=send-mails")
        sample.provider.resume("send-mails")
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.locator("#refresh")).to_have_count(0)


def test_a_refresh_that_fails_says_so_and_goes_on(browser: Browser, address: str) -> None:
    with tab(browser, address) as found:
        page = found.page
        stop_the_clock(page)
        found.go("/")
        page.context.set_offline(True)
        page.clock.run_for(5100)
        expect(page.locator("#status")).to_contain_text("not refreshed")
        expect(page.get_by_role("link", name="clean-up")).to_be_visible()
        page.context.set_offline(False)
        page.clock.run_for(5100)
        expect(page.locator("#status")).not_to_contain_text("not refreshed")


def test_with_the_keyboard_alone(browser: Browser, address: str, sample: Sample) -> None:
    with tab(browser, address) as found:
        page = found.page
        found.go("/change/pause?name=clean-up")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.get_by_label("For how long")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.type("by keyboard")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("by keyboard")
        assert record_of(sample, "clean-up").is_paused


def test_hostile_names_run_nothing(browser: Browser, address: str) -> None:
    with tab(browser, address) as found:
        found.page.on("dialog", lambda dialog: found.complaints.append(dialog.message))
        for path in ("/", "/?q=<script>alert(1)</script>", VIEWS["hostile"]):
            found.go(path)
            found.page.mouse.move(300, 300)
        found.page.locator("g.failed").first.hover()
        assert found.complaints == []


def test_the_picture_in_the_readme_is_drawn_from_the_page(browser: Browser, tmp_path: Path) -> None:
    """``python -m tests.page.picture`` draws it again."""
    from struct import unpack

    draw(browser, tmp_path / "page.png")
    for picture in (tmp_path / "page.png", Path(__file__).parents[2] / "docs" / "images" / "page.png"):
        content = picture.read_bytes()
        assert unpack(">II", content[16:24]) == (WIDTH, HEIGHT)
        assert len(content) < 120_000
