"""docs/how-to/nightly-mail.md: its program in three replicas, with a fire time every two seconds."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from shedlock_py.testing.proxy import TcpProxy
from tests.guides.documents import Page
from tests.support.database import DatabaseServer
from tests.support.forked import Program
from tests.support.polling import wait_until

PAGE = Page("nightly-mail")
PROGRAM = (PAGE.examples / "app.py").read_text()
DRIVER, DATABASE = "postgresql+psycopg", "nightly_mail"
REPLICAS = 3


class Fleet:
    """Replicas, and the mails that they send."""

    def __init__(self, server: DatabaseServer, folder: Path) -> None:
        self.folder = folder
        self.url = server.url(DRIVER, DATABASE)
        self.replicas: list[Program] = []
        self._engine = create_engine(self.url, poolclass=NullPool)

    def write(self, mails: int, *replaced: tuple[str, str]) -> None:
        """Make the table of the page with so many mails in it, and the program with changes."""
        (table,) = PAGE.of("sql")
        with self._engine.begin() as connection:
            connection.execute(text(table.text))
        self.add(mails)
        program = PROGRAM
        for old, new in (('hour="2-4", minute="*/20"', 'second="*/2"'), *replaced):
            assert old in program
            program = program.replace(old, new)
        (self.folder / "app.py").write_text(program)

    def add(self, mails: int) -> None:
        addresses = "SELECT 'user' || n || '@mail.example' FROM generate_series(1, :n) n"
        with self._engine.begin() as connection:
            connection.execute(text(f"INSERT INTO mail (address) {addresses}"), {"n": mails})

    def start(self, url: str | None = None) -> None:
        for number in range(REPLICAS):
            with (self.folder / f"sent-{number}").open("w") as sent, (self.folder / f"log-{number}").open("w") as log:
                variables = {**os.environ, "DATABASE_URL": url or self.url}
                self.replicas.append(Program(["app.py"], cwd=self.folder, env=variables, stdout=sent, stderr=log))

    def by_hand(self, call: str) -> tuple[str, str]:
        """What the call in a shell of Python prints, and what it logs."""
        words = ["-c", f"import app; app.configure(app.DATABASE_URL, create_schema=True); print({call})"]
        variables = {**os.environ, "DATABASE_URL": self.url}
        with Program(words, cwd=self.folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shell:
            return shell.communicate(timeout=60)

    def sent(self, number: int) -> list[str]:
        """The mails that one replica has sent."""
        return re.findall(r"^mail (\S+) to \S+$", (self.folder / f"sent-{number}").read_text(), re.MULTILINE)

    def all_sent(self) -> Counter[str]:
        return Counter(mail for number in range(REPLICAS) for mail in self.sent(number))

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def unsent(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM mail WHERE sent_at IS NULL")).scalar_one())

    def wait_for_all_mails(self, mails: int) -> None:
        wait_until(lambda: self.unsent() == 0, timeout=60, what="all mails are sent")
        wait_until(lambda: len(self.all_sent()) == mails, what="their lines")


@pytest.fixture
def fleet(postgres_server: DatabaseServer, tmp_path: Path) -> Iterator[Fleet]:
    with postgres_server.new_database(DATABASE):
        fleet = Fleet(postgres_server, tmp_path)
        yield fleet
        for replica in fleet.replicas:
            replica.kill()
            replica.wait(20)
        print(fleet.log())


def test_i4_each_mail_is_sent_once_and_a_call_by_hand_is_skipped(fleet: Fleet) -> None:
    fleet.write(20, ('"1m", lock_at_least_for="30s"', '"10m", lock_at_least_for="5m"'))
    fleet.start()
    fleet.wait_for_all_mails(20)
    assert fleet.by_hand("app.nightly_mail.attempt().reason")[0] == "held\n"
    assert set(fleet.all_sent().values()) == {1}


def test_a_mail_that_cannot_be_sent_stops_no_other_mail(fleet: Fleet) -> None:
    broken = 'key: str) -> None:\n    if key == "mail-2":\n        raise MailError("no such mailbox")\n'
    fleet.write(5, ("key: str) -> None:\n", broken))
    output, log = fleet.by_hand("app.nightly_mail()")
    assert [line.split()[1] for line in output.splitlines()[:-1]] == ["mail-1", "mail-3", "mail-4", "mail-5"]
    assert "mail 2 was not sent" in log
    assert fleet.unsent() == 1


def test_i3_sigterm_in_the_middle_and_another_replica_sends_the_other_mails(fleet: Fleet) -> None:
    slow = ("    print(", "    import time\n\n    time.sleep(0.2)\n    print(")
    shorter = ('"1m", lock_at_least_for="30s"', '"3s", lock_at_least_for="1s"')
    fleet.write(40, slow, shorter)
    fleet.start()
    wait_until(lambda: sum(fleet.all_sent().values()) >= 3, timeout=60, what="the first mails")
    [holder] = [number for number in range(REPLICAS) if fleet.sent(number)]
    fleet.replicas[holder].terminate()
    assert fleet.replicas[holder].wait(30) == 143
    assert fleet.unsent() > 0
    fleet.wait_for_all_mails(40)
    assert set(fleet.all_sent().values()) == {1}


def test_i14_the_database_is_away_at_the_fire_time(fleet: Fleet, postgres_server: DatabaseServer) -> None:
    ready = ("    scheduler.start()\n", '    scheduler.start()\n    print("ready", flush=True)\n')
    fleet.write(0, ready, ('second="*/2"', 'second="*/10"'))
    with TcpProxy(postgres_server.address) as proxy:
        fleet.start(postgres_server.url(DRIVER, DATABASE, via=proxy.address))
        outputs = [fleet.folder / f"sent-{number}" for number in range(REPLICAS)]
        wait_until(lambda: all("ready" in each.read_text() for each in outputs), timeout=60, what="three schedulers")
        proxy.refuse()
        proxy.cut()
        fleet.add(20)
        wait_until(lambda: "is tried again until" in fleet.log(), timeout=60, what="a run without a database")
        assert not fleet.all_sent()
        proxy.accept()
        fleet.wait_for_all_mails(20)
    assert set(fleet.all_sent().values()) == {1}
