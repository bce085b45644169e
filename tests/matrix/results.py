"""A row's last result: read from pytest's report, and stored in a file of the clone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.matrix.environments import PROJECT, RESULTS

CONTRACT = "tests.contract."


@dataclass
class Result:
    """:ivar digest: hash of the tested files; ``commit``: the commit that has them.
    :ivar day: when the row ran, in UTC.
    :ivar passed: number of passed tests; ``failed`` lists tests, ``skipped`` counts them by reason.
    :ivar contract: number of passed tests of the contract, by class.
    :ivar versions: versions of the interpreter and of packages; ``servers``: versions of the servers in the tests.
    :ivar left_out: requirements that cannot be installed, with the reasons.
    :ivar trouble: why the row has no report, or was not tried.
    """

    digest: str
    commit: str
    day: str
    seconds: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    contract: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    trouble: str = ""
    tried: bool = True

    @property
    def is_green(self) -> bool:
        return self.tried and not self.failed and not self.trouble

    @property
    def failures(self) -> int:
        """Number of failures. A row without a report counts as one failure."""
        return len(self.failed) or int(self.tried and bool(self.trouble))

    def read_report(self, report: Path) -> None:
        """Count the tests in a JUnit file."""
        skipped: Counter[str] = Counter()
        contract: Counter[str] = Counter()
        failed: dict[str, None] = {}  # a test may fail and then have an error in its teardown
        for case in ElementTree.parse(report).iter("testcase"):
            group, name = case.get("classname", ""), case.get("name", "")
            if case.find("failure") is not None or case.find("error") is not None:
                failed[f"{group}::{name}"] = None
            elif (skip := case.find("skipped")) is not None:
                skipped[skip.get("message", "")] += 1
            else:
                self.passed += 1
                if group.startswith(CONTRACT):
                    contract[group.removeprefix(CONTRACT)] += 1
        self.failed, self.skipped, self.contract = list(failed), dict(skipped), dict(contract)


def save(name: str, result: Result) -> None:
    """Save the result. The file is committed, so it must not contain a home directory's name."""
    _file(name).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(result), indent=1).replace(str(Path.home()), "~")
    _file(name).write_text(f"{text}\n")


def load(name: str) -> Result | None:
    """Return the row's result, or ``None`` if it has never run."""
    return Result(**json.loads(_file(name).read_text())) if _file(name).exists() else None


def _file(name: str) -> Path:
    return PROJECT / RESULTS / f"{name}.json"
