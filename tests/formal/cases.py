"""The cases for TLC: the specifications, their documented limits, and their mutants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.formal.tlc import SPECIFICATIONS

MUTANT = re.compile(r"^((\w+?)_(\w+?)_\w+)(?:\(.*?\))? ==", re.MULTILINE)
ELECTION_CONFIGS = {"expired": "ElectionExpired", "observed": "ElectionObserved"}


@dataclass(frozen=True)
class Case:
    """A run of TLC.

    :ivar violated: the promise that TLC must find broken. None: all promises hold. Empty: any promise.
    """

    name: str
    module: str
    config: str
    violated: str | None = None


def specifications() -> Iterator[Case]:
    for name in ("Lease", "LeaseOfThree"):
        yield Case(name, "Lease", read_config(name))
    for name in ("ElectionExpired", "ElectionObserved"):
        yield Case(name, "Election", read_config(name))


def limits() -> Iterator[Case]:
    """Documented limits: a jump of the store's clock makes two leaders. With ``"observed"``, two opposite jumps do."""
    for name in ("ElectionExpiredJump", "ElectionObservedTwoJumps"):
        yield Case(name, "Election", read_config(name), "AtMostOneLeader")


def mutants() -> Iterator[Case]:
    for mutant, promise, rule in _mutants_of("LeaseMutants"):
        config = read_config("Lease")
        named = next(each for each in config.split("INVARIANTS")[1].split() if each.startswith(promise))
        config = f"{config.split('INVARIANTS')[0]}INVARIANTS {named}\nCONSTANT {rule} <- {mutant}\n"
        yield Case(mutant, "LeaseMutants", config, named)
    for mutant, mode, rule in _mutants_of("ElectionMutants"):
        config = f"{read_config(ELECTION_CONFIGS[mode])}CONSTANT {rule} <- {mutant}\n"
        yield Case(mutant, "ElectionMutants", config, "I7_TermsGrow" if rule == "NewToken" else "AtMostOneLeader")


def read_config(name: str) -> str:
    return (SPECIFICATIONS / f"{name}.cfg").read_text()


def _mutants_of(module: str) -> list[tuple[str, str, str]]:
    """Return the name of each mutant, its broken promise, and the rule that it replaces."""
    return MUTANT.findall((SPECIFICATIONS / f"{module}.tla").read_text())
