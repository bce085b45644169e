"""The page as one file."""

from __future__ import annotations

import base64
import hashlib
import re

from shedlock_py import InMemoryLockProvider
from shedlock_py.page.report import report
from tests.page.sample import ELECTION, HOSTILE, HOSTILE_ERROR, HOSTILE_HOLDER, Sample


def test_a_report_is_one_file(sample: Sample) -> None:
    html = report(sample.provider, [ELECTION, "nosuch"])
    assert not re.search(r"<(script|link|img|iframe|form|object)\b", html)
    assert not re.search(r"<[^>]*\b(src|action)=", html)
    assert {address[0] for address in re.findall(r'href="([^"]*)"', html)} == {"#"}
    assert "@import" not in html
    assert "url(" not in html
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src &#39;none&#39;; style-src &#39;sha256-{digest}&#39;" in html
    for hostile in (HOSTILE, HOSTILE_HOLDER, HOSTILE_ERROR):
        assert hostile not in html
    anchors, targets = set(re.findall(r'href="#([^"]*)"', html)), set(re.findall(r'id="([^"]*)"', html))
    assert anchors <= targets
    assert html.count('class="lanes"') == 8
    assert html.count('class="durations"') == 4
    assert "web-2 leads since" in html


def test_what_needs_attention_is_in_it() -> None:
    sample = Sample()
    for _ in range(4):
        sample.ran("late")
        sample.clock.advance("1h")
    sample.clock.advance("1d")
    for number in range(150):
        sample.ran(f"job-{number:03}")
    sample.ran("job-000", outcome="failed")
    html = report(sample.provider)
    detailed = re.findall(r'<h2 class="text" id="job-\d+">([^<]*)</h2>', html)
    assert len(detailed) == 100
    assert detailed[:2] == ["late", "job-000"]
    assert detailed[2] == "job-149"
    assert "51 other jobs are left out" in html
    assert html.count('<td role="cell" class="name">') == 151


def test_without_history_and_without_locks(sample: Sample) -> None:
    html = report(InMemoryLockProvider(shared_with=sample.provider))
    assert "This provider keeps no run history" in html
    assert html.count('<td role="cell" class="name">') == 8
    assert 'class="lanes"' not in html
    assert "0 locks" in report(InMemoryLockProvider(history=5))
