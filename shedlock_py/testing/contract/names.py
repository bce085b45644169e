"""Lock names and holders are compared and stored unchanged, to the last byte."""

from __future__ import annotations

import pytest

from shedlock_py import LockProvider, LockRequest
from shedlock_py.testing.contract.base import LONG, ContractBase, acquired, record_of

LOOKALIKES = [
    "job", "Job", "JOB", "job ", " job", "job\u00a0", "jöb", "jo\u0308b", "job\u200b", "jób", "ｊｏｂ", "jobs", "jo",
]  # fmt: skip
AWKWARD = [
    "%", "%%", "a%b", "_", "a_b", "*", "?", "[a-z]", "^", "{", "}", "{}", "{name}", "'", '"', "`", "''", "\\", "\\\\",
    "; DROP TABLE shedlock; --", ":name", "$1", "$name", "@x", "#", "a#b", ".", "..", "/", "a/b", "&", "~",
    "🔒", "👩‍👩‍👧", "锁", "قفل", "İı", "ß", "𐍈", "null", "None", "0", "-1", "NaN", "ﬁ",
]  # fmt: skip
HOLDERS = ["h" * 200, "🔒" * 200, "host#7", "a#" + "0" * 32, 'it\'s "me" \\ %s {} :x', "ü " * 10 + "x"]


class NamesContract(ContractBase):
    @pytest.fixture
    def prefix(self, name: str) -> str:
        return name[-12:] + ":"

    def test_lookalikes_are_different_locks(self, provider: LockProvider, prefix: str) -> None:
        leases = [acquired(provider, LockRequest(prefix + name, LONG)) for name in LOOKALIKES]
        for lease, name in zip(leases, LOOKALIKES, strict=True):
            assert record_of(provider, prefix + name).locked_by == f"{lease.holder}#{lease.claim_id}"
            assert provider.acquire(LockRequest(prefix + name, LONG)) is None
        assert [provider.release(lease) for lease in leases] == [True] * len(LOOKALIKES)

    def test_awkward_names_are_locks_like_others(self, provider: LockProvider, prefix: str) -> None:
        leases = {prefix + name: acquired(provider, LockRequest(prefix + name, LONG)) for name in AWKWARD}
        assert {record.name for record in provider.records(prefix)} == set(leases)
        for name, lease in leases.items():
            assert record_of(provider, name).name == name
            assert provider.release(lease) is True

    def test_names_of_64_characters_differ_in_the_last_one(self, provider: LockProvider, prefix: str) -> None:
        for character in ("x", "é", "锁", "🔒"):
            longest = prefix.ljust(63, character)
            names = [longest + "1", longest + "2", longest]
            leases = [acquired(provider, LockRequest(name, LONG)) for name in names]
            assert [record_of(provider, name).name for name in names] == names
            assert provider.acquire(LockRequest(names[0], LONG)) is None
            assert all(provider.release(lease) for lease in leases)

    def test_any_holder_is_kept_as_it_is(self, provider: LockProvider, name: str) -> None:
        for holder in HOLDERS:
            lease = acquired(provider, LockRequest(name, LONG, holder=holder))
            record = record_of(provider, name)
            assert (lease.holder, record.holder) == (holder, holder)
            assert record.locked_by == f"{holder}#{lease.claim_id}"
            assert provider.extend(lease, LONG) is lease
            assert provider.release(lease) is True
            assert record_of(provider, name).holder == holder

    def test_a_prefix_has_no_wildcards(self, provider: LockProvider, prefix: str) -> None:
        endings = ["a", "ab", "A", "b", "%x", "_x", "*x", "?x", "[ab]x", "\\x", "'x", "éx", "🔒x", "^x", "{x", ".x"]
        for ending in endings:
            acquired(provider, LockRequest(prefix + ending, LONG))
        for last in ("a", "A", "%", "_", "*", "?", "[ab]", "\\", "'", "é", "🔒", "", "a*", "a%", "^", "{", "."):
            found = [record.name for record in provider.records(prefix + last)]
            assert sorted(found) == sorted(prefix + ending for ending in endings if ending.startswith(last)), last

    def test_records_are_sorted_by_name(self, provider: LockProvider, prefix: str) -> None:
        for name in ("b", "a", "C", "a-b", "ä", "B", "ab", "10", "9"):
            acquired(provider, LockRequest(prefix + name, LONG))
        names = [record.name for record in provider.records(prefix)]
        assert names == sorted(names)
