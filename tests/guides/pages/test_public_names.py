"""The script writes docs/reference/public-names.md from the code; the file is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

import shedlock_py
from scripts.public_api import COMMAND, PAGE, Source, first_sentence, page
from shedlock_py import providers, testing

PACKAGE = Path(shedlock_py.__file__).parent


def test_the_committed_page_is_what_the_script_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(PACKAGE), f"the public names have changed; run: {COMMAND}"


@pytest.mark.parametrize("module", [shedlock_py, providers, testing])
def test_the_page_has_each_name_that_a_module_exports(module: object) -> None:
    name = getattr(module, "__name__", "")
    assert Source(PACKAGE).exported(name) == sorted(getattr(module, "__all__", ()))
    assert f"\n## {name}\n" in page(PACKAGE)


def test_each_integration_is_on_the_page() -> None:
    modules = Source(PACKAGE).public_modules()
    assert {"apscheduler", "django", "fastapi", "prometheus"} <= {module.rpartition(".")[2] for module in modules}


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("Return the lease.", "Return the lease"),
        ("Is it?\nNo.", "Is it?"),
        ("Elect one\n    node. More.\n\nMuch more.", "Elect one node"),
        ("Hold a lock::\n\n    with hold(): ...", "Hold a lock"),
        (":class:`Lease`, or ``None``: a | b", "`Lease`, or `None`: a \\| b"),
        ("Version 0.1 of it. More.", "Version 0.1 of it"),
    ],
)
def test_the_first_sentence_of_a_docstring(docstring: str, sentence: str) -> None:
    assert first_sentence(docstring) == sentence


def write(directory: Path, text: str) -> Source:
    (directory / "__init__.py").write_text(text)
    return Source(directory)


def test_a_module_without_all_and_a_name_without_a_docstring_are_errors(tmp_path: Path) -> None:
    source = write(tmp_path, "def silent(): ...\nvalue = 1\nother = 2\n'''A number.'''\n")
    with pytest.raises(ValueError, match="shedlock_py has no __all__"):
        source.exported("shedlock_py")
    for name in ("silent", "value"):
        with pytest.raises(ValueError, match=rf"shedlock_py\.{name} has no docstring"):
            source.described("shedlock_py", name)
    with pytest.raises(ValueError, match="shedlock_py does not define absent"):
        source.described("shedlock_py", "absent")
    assert source.described("shedlock_py", "other") == ("value", "A number.")
