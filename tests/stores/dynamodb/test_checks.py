"""Checks of a table, for ``shedlock doctor``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shedlock_py import LockProvider, ProviderUnreachable
from shedlock_py.provider import Check
from tests.stores.dynamodb.conftest import Open
from tests.support.front_end import Fault, FrontEnd

DESCRIBE = "DescribeTable"


def checks_of(provider: LockProvider) -> list[Check]:
    checking: Any = provider
    checks: list[Check] = checking.checks()
    return checks


def test_doctor_says_that_a_table_is_in_one_region(provider: LockProvider) -> None:
    assert checks_of(provider) == [Check("replication", "ok", "in one region only")]


def test_a_global_table_is_a_warning(open_provider: Open, front_end: FrontEnd) -> None:
    """DynamoDB Local has no global tables, so this is a reply from the service's documentation."""
    replicas = [{"RegionName": region, "ReplicaStatus": "ACTIVE"} for region in ("us-east-1", "eu-west-1")]
    reply = {"Table": {"GlobalTableVersion": "2019.11.21", "Replicas": replicas}}
    front_end.fault = Fault(200, json.dumps(reply).encode(), DESCRIBE)
    message = "a global table, with replicas in eu-west-1, us-east-1: two regions can each grant a lock"
    hint = "name one region in the URL of all nodes"
    assert checks_of(open_provider(front_end.address)) == [Check("replication", "warning", message, hint)]


def test_a_role_that_may_not_describe_the_table_is_no_fault(open_provider: Open, front_end: FrontEnd) -> None:
    body = {"__type": "com.amazon.coral.service#AccessDeniedException", "message": "not authorized to DescribeTable"}
    front_end.fault = Fault(400, json.dumps(body).encode(), DESCRIBE)
    (check,) = checks_of(open_provider(front_end.address))
    assert (check.check, check.status) == ("replication", "ok")
    assert check.message.startswith("not known: ")
    assert "not authorized to DescribeTable" in check.message


def test_i5_an_outage_is_an_error(open_provider: Open, front_end: FrontEnd) -> None:
    body = {"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError", "message": "as it is"}
    front_end.fault = Fault(500, json.dumps(body).encode(), DESCRIBE)
    with pytest.raises(ProviderUnreachable):
        checks_of(open_provider(front_end.address))
