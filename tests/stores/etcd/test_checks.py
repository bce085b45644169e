"""Checks of a cluster, for ``shedlock doctor``."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from shedlock_py.provider import Check
from shedlock_py.providers.cas import CasReply, ServerTime
from shedlock_py.providers.etcd import EtcdLockProvider
from shedlock_py.providers.etcd.wire import ALARMS, MEMBERS, STATUS
from shedlock_py.runtime.program import drive
from tests.cli.harness import run
from tests.stores.etcd.conftest import Open
from tests.support.etcd import EtcdServer


def checks_of(open_url: Open, url: str) -> list[Check]:
    provider: Any = open_url(url)
    checks: list[Check] = provider.checks()
    return checks


def test_a_member_alone_names_its_version_and_that_it_is_alone(etcd_server: EtcdServer, open_url: Open) -> None:
    version, members = checks_of(open_url, etcd_server.url())
    assert version == Check("version", "ok", etcd_server.version()[1])
    assert members == Check("members", "ok", "1: without it, no lock is granted")


@pytest.mark.parametrize(
    ("version", "cure"),
    [
        ("3.5.1", "upgrade to 3.5.6 or newer"),
        ("3.5.5+git", "upgrade to 3.5.6 or newer"),
        ("3.5.6", None),
        ("3.4.21", "upgrade to 3.4.22 or newer"),
        ("3.4.22", None),
        ("3.6.0-rc.1", None),
    ],
)
def test_versions_whose_members_may_disagree(version: str, cure: str | None) -> None:
    found = check_of_version({"version": version})
    assert (found.check, found.status, found.hint) == ("version", "warning" if cure else "ok", cure)
    assert found.message.startswith(version)


@pytest.mark.parametrize("status", [{}, {"version": None}, {"version": "3.5"}, {"version": "9" * 5000 + ".1.1"}])
def test_a_version_that_is_not_known_is_no_warning(status: dict[str, Any]) -> None:
    found = check_of_version(status)
    assert (found.status, found.message[:10]) == ("ok", "not known:")


def check_of_version(status: dict[str, Any]) -> Check:
    found, *_ = checks_of_replies(status, {})
    return found


def checks_of_replies(status: dict[str, Any], members: dict[str, Any]) -> list[Check]:
    replies = {STATUS.path: status, MEMBERS.path: members, ALARMS.path: {}}
    time = ServerTime.from_header("Thu, 26 Nov 2026 15:00:00 GMT", 0.0, 0.0)
    with closing(EtcdLockProvider("etcd://localhost")) as provider:
        return drive(provider.programs.checks(), lambda command: CasReply(replies[command.path], time))


def test_a_member_without_space_fails(etcd_server: EtcdServer, open_url: Open) -> None:
    (member,) = etcd_server.ask("/v3/cluster/member/list")["members"]
    alarm = {"memberID": member["ID"], "alarm": "NOSPACE"}
    etcd_server.ask("/v3/maintenance/alarm", action="ACTIVATE", **alarm)
    try:
        *_, found = checks_of(open_url, etcd_server.url())
        done = run("doctor", "--json", store=etcd_server.url())
    finally:
        etcd_server.ask("/v3/maintenance/alarm", action="DEACTIVATE", **alarm)
    assert (found.check, found.status) == ("alarms", "failed")
    assert found.message.startswith("NOSPACE: ")
    assert "alarm disarm" in str(found.hint)
    assert done.exit_code == 1
    shown = [each["check"] for each in json.loads(done.stdout)["checks"]]
    assert shown == ["reach the store", "version", "members", "alarms"]


def test_an_even_number_of_members_is_a_warning() -> None:
    hint = "an even number of members tolerates no more failures than one member fewer: use 3 or 5"
    _, two, *_ = checks_of_replies({}, {"members": [{"ID": "1"}, {"ID": "2"}]})
    assert two == Check("members", "warning", "2, and 0 of them may fail", hint)
    _, three, *_ = checks_of_replies({}, {"members": [{"ID": "1"}, {"ID": "2"}, {"ID": "3"}]})
    assert three == Check("members", "ok", "3, and 1 of them may fail")
