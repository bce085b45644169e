"""What a cluster says of itself: for ``shedlock doctor``."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from shedlock_py.provider import Check
from shedlock_py.providers.etcd import EtcdLockProvider
from tests.cli.harness import run
from tests.stores.etcd.conftest import Open
from tests.support.availability import private_server
from tests.support.etcd import EtcdCluster, EtcdServer


def checks_of(open_url: Open, url: str) -> list[Check]:
    provider: Any = open_url(url)
    checks: list[Check] = provider.checks()
    return checks


def test_a_member_alone(etcd_server: EtcdServer, open_url: Open) -> None:
    found = checks_of(open_url, etcd_server.url())
    assert found == [Check("members", "ok", "1: without it, no lock is granted")]


def test_a_member_without_space(etcd_server: EtcdServer, open_url: Open) -> None:
    (member,) = etcd_server.ask("/v3/cluster/member/list")["members"]
    alarm = {"memberID": member["ID"], "alarm": "NOSPACE"}
    etcd_server.ask("/v3/maintenance/alarm", action="ACTIVATE", **alarm)
    try:
        _, found = checks_of(open_url, etcd_server.url())
        done = run("doctor", "--json", store=etcd_server.url())
    finally:
        etcd_server.ask("/v3/maintenance/alarm", action="DEACTIVATE", **alarm)
    assert (found.check, found.status) == ("alarms", "failed")
    assert found.message.startswith("NOSPACE: ")
    assert "alarm disarm" in str(found.hint)
    assert done.exit_code == 1
    assert [each["check"] for each in json.loads(done.stdout)["checks"]] == ["reach the store", "members", "alarms"]


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.matrix)])
def test_members(size: int) -> None:
    with private_server("etcd", lambda: EtcdCluster(size)) as cluster:
        provider = EtcdLockProvider(cluster.members[0].url())
        with closing(provider):
            (found,) = provider.checks()
    if size == 3:
        assert found == Check("members", "ok", "3, of which 1 may be lost")
    else:
        hint = "an even number of members bears no more losses than one less: take 3 or 5"
        assert found == Check("members", "warning", "2, of which 0 may be lost", hint)
