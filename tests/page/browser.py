"""Debian's Chromium, driven by Playwright, and a page from a real server."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from shedlock_py.page import page_app
from tests.page.sample import ELECTION, Sample
from tests.support.availability import missing
from tests.support.fetching import MissingError, file
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK

AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium. Without it, skip the test, or fail it in CI."""
    program = shutil.which("chromium")
    if program is None:
        missing("there is no chromium", "make servers")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program) as browser:
        yield browser


@contextmanager
def served(sample: Sample) -> Iterator[str]:
    """Serve the page of ``sample``, with changes allowed. Yield its address."""
    app = page_app(sample.provider, allow_changes=True, elections=[ELECTION])
    with socket.create_server((LOOPBACK, 0)) as listening:
        config = uvicorn.Config(app, lifespan="off", ws="none", log_level="warning", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started, timeout=20, what="the server")
            yield f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


@dataclass
class Tab:
    """A tab and its complaints: errors of scripts, and requests that the content security policy refused."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        self.page.goto(f"{self.address}{path}")

    def has_overflow(self) -> bool:
        """Return whether it must be scrolled sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@contextmanager
def tab(browser: Browser, address: str, **options: Any) -> Iterator[Tab]:
    with browser.new_context(**options) as context:
        page = context.new_page()
        found = Tab(page, address)
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on(
            "console",
            lambda message: found.complaints.append(message.text) if message.type in ("error", "warning") else None,
        )
        yield found


def axe_findings(page: Page) -> list[str]:
    """Return axe's serious and critical findings. The context must bypass the policy, which refuses axe too."""
    try:
        script = file("axe", "axe.min.js")
    except MissingError as error:
        missing(str(error), "make servers")
    page.add_script_tag(path=script)
    options = {"runOnly": {"type": "tag", "values": AXE_TAGS}}
    found = page.evaluate("options => axe.run(document, options)", options)
    assert len(found["passes"]) > 10
    return [
        f"{violation['impact']} {violation['id']}: {node['html'][:150]} {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
