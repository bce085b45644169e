"""The scripts draw the pictures in docs/images exactly."""

from xml.etree import ElementTree

import pytest

from tests.guides.documents import DOCS
from tests.support.scripts import PROJECT, run_python

SCRIPTS = sorted(path for path in (PROJECT / "scripts").glob("draw_*.py") if path.name != "draw_common.py")
IMAGES = DOCS / "images"
NOT_DRAWN = {"favicon.svg", "page.png"}  # tests/page/picture.py draws the page


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("images")
    for script in SCRIPTS:
        done = run_python(str(script), str(directory))
        assert (done.returncode, done.stderr) == (0, "")
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_scripts_draw_the_committed_files(drawn: dict[str, bytes]) -> None:
    committed = {path.name: path.read_bytes() for path in IMAGES.iterdir() if path.name not in NOT_DRAWN}
    assert drawn.keys() == committed.keys()
    assert {name for name in drawn if drawn[name] != committed[name]} == set()


def test_each_picture_is_for_light_and_dark_says_what_it_shows_and_needs_nothing(drawn: dict[str, bytes]) -> None:
    for name, content in drawn.items():
        svg = ElementTree.fromstring(content)
        width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
        parts = {part.tag.rpartition("}")[2]: part.text or "" for part in svg}
        assert parts["title"], name
        assert len(parts["desc"]) > 50, name
        assert "prefers-color-scheme: dark" in parts["style"], name
        text = content.decode()
        assert "href" not in text.replace("http://www.w3.org/2000/svg", ""), name
        assert "url(http" not in text, name
        for part in svg.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 < float(part.attrib["x"]) < width, name
            assert 0 < float(part.attrib["y"]) < height, name


def test_each_picture_is_shown_somewhere(drawn: dict[str, bytes]) -> None:
    pages = "".join(path.read_text() for path in [PROJECT / "README.md", *DOCS.rglob("*.md")])
    assert {name for name in drawn if f"images/{name})" not in pages} == set()
