"""Each change that an operator can make, and the places that show it."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest

from shedlock_py import OperatorActed
from shedlock_py.election.demotion import Demotion
from shedlock_py.page import page_app
from shedlock_py.testing import RecordingListener
from tests.page.client import Client
from tests.page.sample import ELECTION, HOSTILE, Sample
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def alice(sample: Sample) -> Client:
    """The browser of a person who has given her name with the token."""
    authorization = "Basic " + base64.b64encode(f"alice:{TOKEN}".encode()).decode()
    app = page_app(sample.provider, allow_changes=True, token=TOKEN, elections=[ELECTION])
    return Client(app, headers={"authorization": authorization})


def test_pause_and_resume(
    alice: Client, sample: Sample, events: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    html = alice.html("/change/pause?name=clean-up")
    assert "No replica starts clean-up until the pause ends" in html
    with caplog.at_level(logging.WARNING, "shedlock_py"):
        reply = alice.change("pause", "clean-up", **{"for": "2h", "why": "migration <b>"})
    assert reply.status_code == 303
    record = record_of(sample.provider, "clean-up")
    assert (record.pause and (record.pause.by, record.pause.reason)) == ("alice", "migration <b>")
    html = alice.html(reply.headers["location"])
    assert "The store has carried it out (pause)" in html
    assert "by alice: migration &lt;b&gt;" in html
    [run, _] = sample.provider.runs("clean-up")
    assert run.holder == "paused by alice: migration <b>"  # in the history as a run
    [event] = events.of(OperatorActed)
    assert (event.lock_name, event.action, event.by) == ("clean-up", "pause", "alice")
    assert "migration <b>" in event.details
    assert [message.partition(": paused until")[0] for message in warnings_of(caplog)] == [
        "lock 'clean-up': pause by operator alice"
    ]
    assert alice.change("resume", "clean-up").status_code == 303
    assert not record_of(sample.provider, "clean-up").is_held
    assert sample.provider.runs("clean-up")[0].outcome == "ok"
    assert [event.action for event in events.of(OperatorActed)] == ["pause", "resume"]


def test_a_pause_while_a_job_runs(alice: Client, sample: Sample, events: RecordingListener) -> None:
    assert "web-3:7002 has it since" in alice.html("/change/pause?name=import")
    reply = alice.change("pause", "import", **{"for": "2h", "why": "kept"})
    assert reply.status_code == 409
    assert "import is not paused: web-3:7002 has it since" in reply.text
    assert 'value="2h"' in reply.text
    assert 'value="kept"' in reply.text
    assert not record_of(sample.provider, "import").is_paused
    assert events.of(OperatorActed) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"for": "soon"}, "for how long"),
        ({"for": ""}, "for how long"),
        ({"why": "a\nb"}, "reason"),
        ({"for": "99999d"}, ""),
    ],
)
def test_values_that_cannot_work(
    alice: Client, sample: Sample, events: RecordingListener, values: dict[str, str], words: str
) -> None:
    reply = alice.change("pause", "clean-up", **values)
    assert reply.status_code == 400
    assert words in reply.text
    assert not record_of(sample.provider, "clean-up").is_held
    assert events.of(OperatorActed) == []


def test_a_held_lock_is_freed_by_force_in_the_name_of_the_operator(
    alice: Client, sample: Sample, events: RecordingListener
) -> None:
    html = alice.html("/change/force_release?name=import")
    assert "web-3:7002 has it since" in html
    assert "a second one can start beside it at once" in html
    assert alice.change("force_release", "import").status_code == 303
    assert not record_of(sample.provider, "import").is_held
    [event] = events.of(OperatorActed)
    assert (event.action, event.by, event.details) == ("force_release", "alice", "it was held by web-3:7002 for 3.0s")
    assert "not held" in alice.html("/change/force_release?name=import", 409)


def test_a_paused_lock_is_resumed_and_not_freed_by_force(alice: Client) -> None:
    assert "/change/force_release" not in alice.html("/job?name=send-mails")
    html = alice.html("/change/force_release?name=send-mails", 409)
    assert "by alice@ops: migration of the orders table. Use Resume instead." in html


def test_what_has_changed_since_it_was_shown_is_left_alone(alice: Client, sample: Sample) -> None:
    fields = alice.form("/change/force_release?name=import")
    sample.clock.advance("1h")
    sample.ran("import", "web-1", 1)
    sample.provider.pause("import", "1h", by="bob")
    seen = record_of(sample.provider, "import").locked_by
    for data in (fields, {**fields, "seen": seen}):  # also a form that was made by hand
        reply = alice.request("POST", "/change/force_release", data=data)
        assert (reply.status_code, "Use Resume instead" in reply.text) == (409, True)
    assert record_of(sample.provider, "import").is_paused


def test_a_pause_of_somebody_else_meanwhile_is_left_alone(
    alice: Client, sample: Sample, events: RecordingListener
) -> None:
    fields = alice.form("/change/pause?name=clean-up")
    sample.provider.pause("clean-up", "3d", "migration", by="bob")
    reply = alice.request("POST", "/change/pause", data={**fields, "for": "1m"})
    assert (reply.status_code, "was paused meanwhile" in reply.text, "by bob: migration" in reply.text) == (
        409,
        True,
        True,
    )
    assert record_of(sample.provider, "clean-up").remaining.days == 3
    assert events.of(OperatorActed) == []
    assert alice.change("pause", "clean-up", **{"for": "1m"}).status_code == 303  # the change was confirmed
    assert record_of(sample.provider, "clean-up").remaining.days == 0


def test_the_same_form_twice_changes_something_once(alice: Client, sample: Sample, events: RecordingListener) -> None:
    for path in ("pause?name=clean-up", "resume?name=send-mails", "force_release?name=import"):
        fields = alice.form(f"/change/{path}")
        path = f"/change/{path.partition('?')[0]}"
        assert [alice.request("POST", path, data=fields).status_code for _ in range(2)] == [303, 409]
    assert [event.action for event in events.of(OperatorActed)] == ["pause", "resume", "force_release"]


def test_a_job_is_not_demoted(alice: Client, sample: Sample, events: RecordingListener) -> None:
    assert "is not known to be an election" in alice.html("/change/demote?name=import", 409)
    fields = alice.form(f"/change/demote?name={ELECTION}")
    seen = record_of(sample.provider, "import").locked_by
    reply = alice.request("POST", "/change/demote", data={**fields, "name": "import", "seen": seen})
    assert (reply.status_code, "is not known to be an election" in reply.text) == (409, True)
    assert record_of(sample.provider, "import").locked_by == seen
    assert events.of(OperatorActed) == []


def test_a_leaders_lease_is_not_freed_by_force(alice: Client, sample: Sample, events: RecordingListener) -> None:
    """Otherwise another node would lead while the leader trusts its lease. The button is missing, and the URL refuses
    too."""
    assert "Demote it instead" in alice.html(f"/change/force_release?name={ELECTION}", 409)
    fields = alice.form("/change/force_release?name=import")
    seen = record_of(sample.provider, ELECTION).locked_by
    reply = alice.request("POST", "/change/force_release", data={**fields, "name": ELECTION, "seen": seen})
    assert (reply.status_code, "Demote it instead" in reply.text) == (409, True)
    assert record_of(sample.provider, ELECTION).is_held
    assert events.of(OperatorActed) == []


def test_a_demoted_leader_loses_its_lease_and_the_page_says_so(
    alice: Client, sample: Sample, events: RecordingListener
) -> None:
    assert "web-2 loses its lease" in alice.html(f"/change/demote?name={ELECTION}")
    reply = alice.change("demote", ELECTION, renew_deadline="20s", cooldown="1m")
    assert reply.status_code == 303
    record = record_of(sample.provider, ELECTION)
    demotion = Demotion.from_record(record)
    assert demotion is not None
    assert (demotion.leader, demotion.cooldown.total_seconds()) == ("web-2", 60)
    assert 20 <= (record.lock_until - record.locked_at).total_seconds() < 25
    assert "web-2 was demoted; the next election is in" in alice.html("/leaders")
    assert "Free by force" not in alice.html("/leaders") + alice.html(f"/job?name={ELECTION}")
    assert "two can lead at the same time" in alice.html(f"/change/force_release?name={ELECTION}")
    assert sample.provider.runs(ELECTION)[0].holder == "demoted 60000ms web-2"  # so it is in the history
    [event] = events.of(OperatorActed)
    assert (event.lock_name, event.action, event.by) == (ELECTION, "demote", "alice")


def test_prune_deletes_only_what_was_counted_and_says_how_many(
    alice: Client, sample: Sample, events: RecordingListener
) -> None:
    html = alice.html("/change/prune?unused_for=10h")
    assert "1 lock record is free and was not held for 10h" in html
    assert "<li>fetch-rates</li>" in html
    fields = alice.form("/change/prune?unused_for=10h")
    reply = alice.request("POST", "/change/prune", data={**fields, "unused_for": "0s"})
    assert (reply.status_code, "count again" in reply.text) == (409, True)
    reply = alice.request("POST", "/change/prune", data=fields)
    assert (reply.status_code, "Deleted: 1 lock record that was not held for 10h." in reply.text) == (200, True)
    assert sample.provider.record("fetch-rates") is None
    assert len(sample.provider.records()) == 7
    [event] = events.of(OperatorActed)
    assert (event.lock_name, event.details) == ("", "1 lock record that was not held for 10h")
    for seen in ("10h", "10h soon", "10h 2020-01-01T00:00:00"):  # not counted by this page
        reply = alice.request("POST", "/change/prune", data={**fields, "seen": seen})
        assert (reply.status_code, "count again" in reply.text) == (409, True)
    assert "90d" in alice.html("/change/prune")
    assert "duration" in alice.html("/change/prune?unused_for=soon", 400)


def test_prune_leaves_records_that_became_old_after_the_count(alice: Client, sample: Sample) -> None:
    fields = alice.form("/change/prune?unused_for=0s")
    sample.clock.advance("5s")
    lease = acquired(sample.provider, "new")
    assert sample.provider.release(lease)
    alice.request("POST", "/change/prune", data=fields)
    assert [record.name for record in sample.provider.records() if not record.is_held] == ["new"]


def test_a_hostile_name_can_be_paused(alice: Client, sample: Sample) -> None:
    assert alice.change("pause", HOSTILE, **{"for": "1h"}).status_code == 303
    assert record_of(sample.provider, HOSTILE).is_paused


def test_a_name_that_was_never_used_can_be_paused(alice: Client, sample: Sample) -> None:
    assert "The store has no lock new-job yet" in alice.html("/change/pause?name=new-job")
    assert alice.change("pause", "new-job").status_code == 303
    assert record_of(sample.provider, "new-job").is_paused


@pytest.mark.parametrize("action", ["resume", "force_release", "demote"])
def test_there_must_be_something_to_change(alice: Client, action: str) -> None:
    assert "The store has no lock" in alice.html(f"/change/{action}?name=nosuch", 409)
    alice.html(f"/change/{action}?name=clean-up", 409)
    alice.html("/change/nosuch?name=clean-up", 400)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("bob@example.org", "bob@example.org"), ("", "@"), (None, "@")],
)
def test_the_application_says_who_it_is(sample: Sample, given: Any, expected: str) -> None:
    client = Client(page_app(sample.provider, allow_changes=True, operator=lambda request: given))
    assert client.change("pause", "clean-up").status_code == 303
    pause = record_of(sample.provider, "clean-up").pause
    assert pause is not None
    assert expected in pause.by


@pytest.mark.parametrize("given", ["a: b", "x\x00y", "x" * 101])
def test_a_user_name_that_no_record_can_hold_is_refused(sample: Sample, given: str) -> None:
    """The change is not blamed on another user."""
    client = Client(page_app(sample.provider, allow_changes=True, operator=lambda request: given))
    reply = client.change("pause", "clean-up")
    assert reply.status_code == 400
    assert "No record can hold this user name" in reply.text
    assert record_of(sample.provider, "clean-up").pause is None


def test_only_this_browser_is_told_that_a_change_was_made(client: Client, sample: Sample) -> None:
    another = Client(client.app)
    told = "The store has carried it out"
    reply = client.change("pause", "clean-up")
    assert told in client.html(reply.headers["location"])
    assert told not in client.html(reply.headers["location"].replace("clean-up", "import"))
    assert told not in another.html(reply.headers["location"])
    assert told not in client.html("/job?name=import&done=force_release")
