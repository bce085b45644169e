"""A cluster of three servers: any of them may die, and no lease is lost."""

from __future__ import annotations

import pytest

from tests.faults.registry import Budget, Run
from tests.faults.scenarios import members
from tests.support.nats import NatsServer
from tests.support.stores import NatsStore

pytestmark = pytest.mark.slow("starts three servers")
LIKE_ETCD = pytest.mark.matrix("etcd's servers show it for the same programs")


@pytest.mark.parametrize(
    "run",
    [
        members.nats_killed,
        pytest.param(members.nats_leader_stopped, marks=LIKE_ETCD),
        pytest.param(members.majority_stopped, marks=LIKE_ETCD),
    ],
)
def test_i1_servers_that_go_away(nats_server: NatsServer, run: Run) -> None:
    report = run(NatsStore(nats_server), Budget(0), 1)
    assert report.findings == []
    assert report.counts["cut"] >= 1
