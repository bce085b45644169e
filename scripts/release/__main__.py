"""Check that this checkout can be released; ``make release-check``. One line for each step, with its fix.

The output is in ``build/release``: the distributions in ``dist/``, the SBOM, and each tool's output in ``<step>.log``.
Each step fetches its own tool into ``.venv-release``: a failed fetch fails only that step. Tests on other Pythons use
the environments of ``make test-all``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from scripts.release import checks, distributions, texts
from scripts.release.tools import BUILD, FailedError
from tests.matrix.environments import SetupError
from tests.support.fetching import MissingError


@dataclass(frozen=True)
class Step:
    name: str
    what: str
    minutes: float
    """Minutes on two quiet cores, with existing environments."""
    run: Callable[[], str]
    """Returns the text for the step's line. :raises FailedError: it failed."""


def steps(jobs: int, tag: str | None) -> list[Step]:
    return [
        Step("texts", "version, changelog, citation, policy, hashes, address", 0, partial(texts.check, tag)),
        Step("project", "validate-pyproject", 0.1, distributions.check_project),
        Step("build", "the sdist, and the wheel made from it", 0.3, distributions.build),
        Step("metadata", "twine check --strict", 0.1, distributions.check_metadata),
        Step("wheel", "check-wheel-contents, py.typed", 0.1, distributions.check_wheel),
        Step("readme", "as PyPI renders it", 0.1, distributions.check_readme),
        Step("alone", "the wheel without another package, on each Python", 0.3, distributions.check_alone),
        Step("licences", "what the extras bring: its licences, and the SBOM", 0.5, distributions.check_licences),
        Step("workflows", "zizmor", 0.1, checks.check_workflows),
        Step("actions", "actionlint", 0.1, checks.check_actions),
        Step("types", "mypy and pyright on the type tests, with the wheel", 1, checks.check_types),
        Step("coverage", "lines and branches", 6, partial(checks.check_coverage, jobs)),
        Step("pythons", "tests with the wheel on each Python", 15, partial(checks.check_pythons, jobs)),
    ]


def main() -> int:
    options = _options()
    chosen = [
        step
        for step in steps(options.jobs, options.tag)
        if (not options.only or step.name in options.only) and step.name not in options.skip
    ]
    if options.list:
        print(*(f"{step.name:12}{step.what} ({step.minutes:g} min)" for step in chosen), sep="\n")
        return 0
    BUILD.mkdir(parents=True, exist_ok=True)
    print(f"{len(chosen)} steps, about {sum(step.minutes for step in chosen):.0f} minutes", flush=True)
    failed = sum(not _passes(step) for step in chosen)
    print(f"release check: {len(chosen) - failed} ok, {failed} failed")
    return int(failed > 0)


def _passes(step: Step) -> bool:
    (BUILD / f"{step.name}.log").unlink(missing_ok=True)
    began = time.monotonic()
    try:
        verdict, words = "ok", step.run()
    except FailedError as error:
        verdict, words = "failed", f"{error}. To mend it: {error.cure}"
    except (MissingError, SetupError) as error:
        verdict, words = "failed", f"{str(error).splitlines()[-1]}. To mend it: make servers-all"
    print(f"{verdict:8}{step.name:11}{words} ({time.monotonic() - began:.0f} s)", flush=True)
    return verdict == "ok"


def _options() -> argparse.Namespace:
    names = [step.name for step in steps(1, None)]

    def listed(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(names):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        return text.split(",")

    parser = argparse.ArgumentParser(prog="python -m scripts.release", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=listed, default=[], metavar="STEPS", help="these steps, separated by commas")
    parser.add_argument("--skip", type=listed, default=[], metavar="STEPS", help="all steps but these")
    parser.add_argument("--tag", metavar="vX.Y.Z", help="it is about to be published, with this tag")
    parser.add_argument("--jobs", type=int, default=4, help="processes that run tests (4)")
    parser.add_argument("--list", action="store_true", help="list the steps")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
