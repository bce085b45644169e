"""Steps of the release check for the published files: the sdist, the wheel, and the packages of the extras."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from html.parser import HTMLParser
from urllib.parse import urlsplit

from scripts.release.tools import BUILD, DIST, PROJECT, FailedError, contents, install, pyproject, run, tool, wheel
from tests.matrix import environments
from tests.matrix.rows import ROWS
from tests.support.fetching import MissingError, python

LICENCES = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0", "Python-2.0"),
    *("Apache Software License", "BSD License"),  # classifiers of packages that give no version
    "LGPL-3.0-only",  # psycopg: imported, not copied; docs/policy.md names the extras that bring it
    *("MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)"),  # certifi: its list of authorities, unchanged
}
"""Licences that packages of the extras may have."""


def check_project() -> str:
    validator = tool("project", "validate-pyproject").with_name("validate-pyproject")
    run("project", validator, "pyproject.toml", cure="correct pyproject.toml")
    return "pyproject.toml is valid"


def build() -> str:
    shutil.rmtree(DIST, ignore_errors=True)
    builder = tool("build", "build")
    run("build", builder, "-m", "build", "--outdir", DIST, ".", cure="see the log")
    shipped, tested = contents(wheel()), contents(environments.build_wheel())
    if differing := sorted(name for name in {*shipped, *tested} if shipped.get(name) != tested.get(name)):
        cure = "add what is missing to [tool.hatch.build.targets.sdist] in pyproject.toml"
        raise FailedError(f"the sdist gives another wheel than the checkout: {', '.join(differing[:5])}", cure)
    return ", ".join(f"{path.name} {path.stat().st_size / 1000:,.0f} kB" for path in sorted(DIST.iterdir()))


def check_metadata() -> str:
    twine = tool("metadata", "twine")
    run("metadata", twine, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()), cure="see the log")
    return "twine finds nothing in the sdist and the wheel"


def check_wheel() -> str:
    checker = tool("wheel", "check-wheel-contents").with_name("check-wheel-contents")
    run("wheel", checker, wheel(), cure="see the log; https://pypi.org/project/check-wheel-contents has the codes")
    names = contents(wheel())
    if "shedlock_py/py.typed" not in names:
        raise FailedError("there is no shedlock_py/py.typed in it", "keep that file in the package")
    return f"{len(names)} files, with py.typed"


def check_readme() -> str:
    renderer = tool("readme", "readme-renderer")
    with zipfile.ZipFile(wheel()) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode().partition("\n\n")[2]
    description, page = BUILD / "readme.md", BUILD / "readme.html"
    description.write_text(text)
    script = (
        "import sys, readme_renderer.markdown as m; page = m.render(open(sys.argv[1]).read()); "
        "open(sys.argv[2], 'w').write(page or sys.exit('it does not render'))"
    )
    run("readme", renderer, "-c", script, description, page, cure="correct README.md")
    links = Links(page.read_text()).found
    if relative := [link for link in links if not link.startswith("#") and urlsplit(link).scheme != "https"]:
        cure = "the substitutions of fancy-pypi-readme in pyproject.toml must make them absolute"
        raise FailedError(f"links that lead nowhere on PyPI: {', '.join(relative[:5])}", cure)
    return f"it renders as on PyPI; all {len(links)} links and pictures are absolute"


class Links(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if (tag, name) in {("a", "href"), ("img", "src")}]


def check_alone() -> str:
    """Install and use the wheel alone, as a new user does."""
    script = (
        "import shedlock_py as s; s.configure(provider=s.InMemoryLockProvider()); "
        "job = s.scheduler_lock('job', '1m', '1s')(lambda: 'ran'); assert (job(), job()) == ('ran', None); "
        "print(s.__version__)"
    )
    tried = []
    for row in ROWS:
        if row.name != f"python-{row.python}":
            continue
        try:
            interpreter = python(row.python)
        except MissingError:
            continue
        directory = BUILD / "alone" / row.python
        shutil.rmtree(directory, ignore_errors=True)
        run("alone", interpreter, "-m", "venv", "--without-pip", directory, cure="see the log")
        install("alone", directory / "bin" / "python", str(wheel()))
        run("alone", directory / "bin" / "python", "-W", "error", "-c", script, cwd=BUILD, cure="see the log")
        tried.append(row.python)
    return f"installed and used without another package on Python {', '.join(tried)}"


def check_licences() -> str:
    """Write an SBOM with all packages of the extras, and check the licences that they declare in it."""
    cyclonedx, clean = tool("licences", "cyclonedx-bom"), BUILD / "extras"
    shutil.rmtree(clean, ignore_errors=True)
    run("licences", sys.executable, "-m", "venv", "--without-pip", clean, cure="see the log")
    extras = pyproject()["project"]["optional-dependencies"]
    install("licences", clean / "bin" / "python", f"{wheel()}[{','.join(extras)}]")
    sbom = BUILD / f"{wheel().name.removesuffix('-py3-none-any.whl')}.cdx.json"
    words = ("environment", clean / "bin" / "python", "--pyproject", "pyproject.toml", "--mc-type", "library")
    run("licences", cyclonedx, "-m", "cyclonedx_py", *words, "--output-reproducible", "-o", sbom, cure="see the log")
    bill = json.loads(sbom.read_text())
    bill["metadata"]["component"]["version"] = wheel().name.split("-")[1]  # pyproject.toml leaves the version to hatch
    sbom.write_text(json.dumps(bill, indent=2) + "\n")
    refused = {item["name"]: names for item in bill["components"] if not allowed(names := declared(item))}
    if refused:
        listed = "; ".join(f"{name}: {', '.join(names) or 'none declared'}" for name, names in refused.items())
        raise FailedError(
            listed, "a person decides; then add the licence to LICENCES in scripts/release/distributions.py"
        )
    return f"{len(bill['components'])} packages of the extras, all allowed; the SBOM is {sbom.relative_to(PROJECT)}"


def declared(component: dict[str, list[dict[str, dict[str, str] | str]]]) -> list[str]:
    """Return a component's declared licences: an SPDX expression, an SPDX id, or a classifier."""
    found = []
    for item in component.get("licenses", []):
        licence = item.get("license", {})
        name = item.get("expression") or (
            licence.get("id") or licence.get("name", "") if isinstance(licence, dict) else ""
        )
        found.append(str(name).rpartition(" :: ")[2])
    return found


def allowed(names: list[str]) -> bool:
    """Whether each name is allowed. ``A AND B`` needs both, ``A OR B`` needs one."""
    return bool(names) and all(name in LICENCES or _expression_is_allowed(name) for name in names)


def _expression_is_allowed(expression: str) -> bool:
    choices = (choice.split(" AND ") for choice in expression.split(" OR "))
    return any(all(part.strip(" ()") in LICENCES for part in choice) for choice in choices)
