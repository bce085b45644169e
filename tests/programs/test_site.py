"""The site builds without a warning and loads nothing from elsewhere; its links and its search work."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from shedlock_py.cli.app import shedlock
from tests.support.scripts import PROJECT, run_python

pytestmark = pytest.mark.skipif(
    not (PROJECT / "shedlock_py").is_dir(),
    reason="the pages need the package's files, which this copy of the clone lacks",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")  # turns off Material's advertisement for its successor
        done = run_python(
            "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory), timeout=100
        )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    lines = [line for line in output.splitlines() if not line.startswith("INFO    -  ")]
    assert lines == []
    return directory


class Page(HTMLParser):
    """A page's links, its loaded resources, and its link targets."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids, self.links, self.loads = set[str](), list[str](), list[str]()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe") and "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") != "canonical" and "href" in values:
            self.loads.append(values["href"])


def test_links_and_anchors_of_the_site_resolve(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 40
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in pages[target].ids):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


def test_the_first_page_is_the_readme(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "index.html").read_text())
    assert "Run N copies of your app. Each scheduled job still runs once." in text
    assert "Working on it" in text


def test_llms_txt_links_to_pages_of_the_site(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert len(links) == 5
    assert [link for link in links if not (site / link).is_file()] == []


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = [address for path in site.rglob("*.html") for address in Page(path).loads]
    assert loaded
    assert [address for address in loaded if urlsplit(address).netloc] == []
    styles = {path: path.read_text() for path in site.rglob("*.css")}
    assert styles
    assert [path for path, text in styles.items() if "url(http" in text] == []


def test_the_command_line_is_there_with_its_variables(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "command-line.html").read_text())
    assert "SHEDLOCK_STORE" in text
    assert "Sentinel.UNSET" not in text  # mkdocs-click's tables have it for a missing default; use ":style: plain"


def test_docstrings_leave_no_markup_behind(site: Path) -> None:
    pages = [*(site / "reference" / "api").glob("*.html")]
    assert pages
    for path in pages:
        text = re.sub(r"<[^>]+>", "", path.read_text())
        assert not re.search(
            r":(func|class|meth|data|attr|param \w+|raises?|returns?)[ \w]*:|``|\w::$", text, re.MULTILINE
        ), path


def test_the_reference_has_every_public_name(site: Path) -> None:
    import shedlock_py

    ids = set[str]().union(*(Page(path).ids for path in (site / "reference" / "api").glob("*.html")))
    assert {name for name in shedlock_py.__all__ if f"shedlock_py.{name}" not in ids} == set()


def test_the_reference_shows_what_a_function_takes_and_raises(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "api" / "configuration.html").read_text())
    assert "default_lock_at_most_for" in text
    assert re.search(r"Raises:.*ConfigurationError.*a value that cannot work", text, re.DOTALL)
    html = (site / "reference" / "api" / "configuration.html").read_text()
    assert 'href="#shedlock_py.provider_from_url"' in html


def test_long_signatures_are_broken_into_lines(site: Path) -> None:
    """ruff does so; without it each signature is one line that is cut."""
    html = (site / "reference" / "api" / "guards.html").read_text()
    signature = re.sub(r"<[^>]+>", "", html[html.index('id="shedlock_py.scheduler_lock"') :]).split("Parameters")[0]
    options = re.findall(r"^    (\w+): ", signature, re.MULTILINE)
    assert {"lock_at_most_for", "lock_at_least_for", "keep_alive", "on_skip"} <= set(options)


# The search


def indexed_text(site: Path) -> str:
    index = json.loads((site / "search" / "search_index.json").read_text())
    return "\n".join(
        re.sub(r"<[^>]+>", "", entry["title"] + entry["text"])
        for entry in index["docs"]
        if entry["location"].startswith("reference/command-line.html#shedlock")
    )


def test_every_option_of_the_command_line_is_in_the_search_index(site: Path) -> None:
    text = indexed_text(site)
    options = {
        option
        for command in [shedlock, *shedlock.commands.values()]
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    assert {"--once-per", "--at-most", "--force"} <= options
    assert {option for option in options if option not in text} == set()


def found(site: Path, query: str) -> list[str]:
    """Return the results of the theme's own search on the site, best first."""
    script = PROJECT / "scripts" / "search_site.js"
    done = subprocess.run(["node", str(script), str(site), query], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the site's own search, which is JavaScript: needs node")
@pytest.mark.parametrize(
    ("query", "address"),
    [
        ("--once-per", "reference/command-line.html#--once-per-one-run-in-each-period"),
        ("--at-most", "reference/command-line.html#--at-most-when-the-command-takes-longer"),
        ("--at-least", "reference/command-line.html#shedlock-run"),
        ("shedlock run --keep-al", "reference/command-line.html#shedlock-run"),
        ("once-per", "reference/command-line.html#--once-per-one-run-in-each-period"),
        ("fencing token", "how-to/fencing-a-transaction.html"),
        ("run twice", "how-to/by-word.html#a-job-is-run-twice"),
        ("idempotent", "how-to/by-word.html#idempotent"),
        ("DST", "how-to/by-word.html#dst-daylight-saving-time"),
        ("gunicorn", "how-to/by-word.html#gunicorn-workers"),
        ("advisory lock", "how-to/by-word.html#advisory-lock"),
        ("django-q2", "how-to/django-schedulers.html#django-q2"),
        ("Flask-APScheduler", "how-to/flask.html#flask-apscheduler"),
        ("runserver", "how-to/by-word.html#django-appconfigready-and-runserver"),
        ("lock_at_most_for", "long-jobs.html#choosing-lock_at_most_for"),
    ],
)
def test_the_search_finds(query: str, address: str, site: Path) -> None:
    assert address in found(site, query)[:12]
