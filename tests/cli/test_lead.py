"""`shedlock lead`: a command runs on one node at a time, and is dead before another node can lead."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import struct
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from tests.cli.harness import in_a_process, provider_at, run
from tests.cli.runs import LATER_ON_ASYNCPG, Runs
from tests.cli.terminal import PROGRAM, Terminal, command
from tests.support.availability import private_server
from tests.support.forked import Process
from tests.support.polling import wait_until
from tests.support.ports import free_port
from tests.support.processes import is_running, stop
from tests.support.redis import RedisServer

pytestmark = in_a_process

LEASE = 1.5  # seconds; SIGTERM 0.6 s after the last renewal, SIGKILL 0.4 s later, another leads 0.5 s after that
SLEEPS = "import os, time; print('ready', flush=True); time.sleep(60)"
# Appends the time to a file, again and again, whatever signal comes. A child of its group writes to another file. Ready
# when both have begun.
STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
reader, writer = os.pipe()
name = 'parent' if os.fork() else 'child'
with open(f"{name}-{os.environ['SHEDLOCK_TERM']}", "w") as file:
    for number in range(20_000):
        print(os.getpid(), time.time(), file=file, flush=True)
        if number == 0 and name == 'child': os.write(writer, b'.')
        if number == 0 and name == 'parent': os.read(reader, 1); print('ready', flush=True)
        time.sleep(0.005)
"""


@pytest.fixture
def nodes(runs: Runs) -> Nodes:
    return Nodes(runs)


class Nodes:
    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    def start(self, *arguments: str, **options: object) -> Process:
        lease = () if "--lease-duration" in arguments else ("--lease-duration", f"{LEASE}s")
        words: dict[str, object] = {"verb": "lead", "cwd": self.runs.directory, **options}
        if "words" not in words:
            words.setdefault("python", SLEEPS)
        return self.runs.start("job", *lease, *arguments, **words)  # type: ignore[arg-type]  # as Runs has them

    def start_leading(self, *arguments: str, **options: object) -> Process:
        process = self.start(*arguments, **options)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def start_waiting(self, *arguments: str, **options: object) -> Process:
        """Start a node and wait until it has reported the leader."""
        process = self.start(*arguments, **options)
        assert "waiting; " in read_line(process)
        return process


def read_line(process: Process) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def ended_at(runs: Runs, term: int | None) -> float:
    """Return when the last process of a stubborn command wrote its last line, after all of them have ended."""
    last = []
    for name in ("parent", "child"):
        pid, moment = runs.path(f"{name}-{term}").read_text().splitlines()[-1].split()
        wait_until(lambda pid=int(pid): not is_running(pid), what=f"{name} gone")  # type: ignore[misc]  # bound now
        last.append(float(moment))
    return max(last)


# Handing over


@LATER_ON_ASYNCPG
def test_one_of_two_nodes_runs_it_and_hands_over_at_once(nodes: Nodes) -> None:
    python = "import os, signal; print('ready', os.environ['SHEDLOCK_TERM'], sep='\\n', flush=True); signal.pause()"
    first = nodes.start_leading("--lease-duration", "1m", python=python)
    assert first.stdout is not None
    term = first.stdout.readline()
    second = nodes.start_waiting("--lease-duration", "1m", "--retry-period", "500ms", python=python)
    lease_ends = nodes.runs.record("job").lock_until
    first.terminate()
    code, _, err = nodes.runs.end(first)
    assert (code, err.count("\n")) == (128 + signal.SIGTERM, 1)
    assert second.stdout is not None
    assert second.stdout.readline() == "ready\n"
    assert nodes.runs.record("job").locked_at < lease_ends
    assert int(second.stdout.readline()) > int(term)
    second.terminate()
    assert nodes.runs.end(second)[0] == 128 + signal.SIGTERM
    assert not nodes.runs.is_held()


@pytest.mark.slow("several leases of real time")
def test_a_command_that_takes_its_time_after_sigterm_keeps_the_leadership(nodes: Nodes) -> None:
    """It takes longer than a lease, and a second SIGTERM reaches it too. The node ends with the command's exit code."""
    python = (
        "import signal, sys, time\ngot = []\n"
        "def trap(*args): got.append(time.monotonic()); print('got', flush=True)\nsignal.signal(15, trap)\n"
        "print('ready', flush=True)\nwhile len(got) < 2: time.sleep(0.01)\n"
        f"while time.monotonic() < got[0] + {LEASE + 0.5}: time.sleep(0.01)\nsys.exit(7)"
    )
    process = nodes.start_leading(python=python)
    term = nodes.runs.record("job").fencing_token
    assert process.stdout is not None
    for _ in range(2):
        process.terminate()
        assert process.stdout.readline() == "got\n"
    while process.poll() is None:
        record = nodes.runs.record("job")
        assert (record.fencing_token == term) if record.is_held else process.wait(5) == 7
    assert process.returncode == 7
    assert not nodes.runs.is_held()


def test_ctrl_c_on_a_terminal(nodes: Nodes) -> None:
    words = command("lead", "job", "--", "sh", "-c", "echo ready; exec sleep 60")
    with Terminal(words, SHEDLOCK_STORE=nodes.runs.store) as terminal:
        terminal.read_until("ready")
        terminal.type("\x03")
        assert terminal.end() == 128 + signal.SIGINT
    assert not nodes.runs.is_held()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_node_that_stands_by_ends_at_once(nodes: Nodes, number: signal.Signals) -> None:
    nodes.start_leading()
    second = nodes.start_waiting()
    second.send_signal(number)
    assert nodes.runs.end(second) == (128 + number, "", "")


def test_a_signal_that_is_for_the_command_ends_no_leadership(nodes: Nodes) -> None:
    # sigwait() also takes an earlier signal; just before pause(), a handler would not be called.
    python = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {1}); print('ready', flush=True)\n"
        "signal.sigwait({1}); print('reloaded', flush=True); signal.pause()"
    )
    process = nodes.start_leading(python=python)
    process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    assert process.stdout.readline() == "reloaded\n"
    assert nodes.runs.is_held()


# The command ends by itself


def test_on_exit_exit(nodes: Nodes) -> None:
    code, out, err = nodes.runs.end(nodes.start(python="raise SystemExit(5)"))
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert not nodes.runs.is_held()


@pytest.mark.slow("several leases of real time")
def test_on_exit_resign_another_node_leads_and_then_this_one_again(nodes: Nodes) -> None:
    path = nodes.runs.path("log")
    python = f"import os; open({str(path)!r}, 'a').write(os.environ['NODE'] + '\\n'); raise SystemExit(3)"
    # If 1.6 s remain, the other node needs up to 1 s until it looks again. A busy machine may need the remaining 0.6 s.
    options: list[str] = ["--on-exit", "resign", "--lease-duration", "6s"]
    started = [nodes.start(*options, python=python, variables={"NODE": node}) for node in ("a", "b")]
    wait_until(lambda: path.exists() and len(path.read_text().split()) >= 4, what="four terms")
    for process in started:
        process.terminate()
        _, _, err = nodes.runs.end(process)
        assert "the command ended with exit code 3" in err
    assert {*path.read_text().split()[:4]} == {"a", "b"}


@pytest.mark.parametrize("on_exit", ["resign", "stay"])
def test_a_signal_that_comes_while_the_command_ends_ends_the_node(nodes: Nodes, on_exit: str) -> None:
    python = "import os, time; print('ready', os.getpid(), sep='\\n', flush=True); time.sleep(60)"
    process = nodes.start_leading("--lease-duration", "1m", "--on-exit", on_exit, python=python)
    assert process.stdout is not None
    command = int(process.stdout.readline())
    stop(process.pid)
    os.kill(command, signal.SIGKILL)
    process.terminate()  # the kernel delivers this signal before SIGCHLD
    process.send_signal(signal.SIGCONT)
    assert nodes.runs.end(process)[0] == 128 + signal.SIGKILL
    assert not nodes.runs.is_held()


def test_on_exit_stay_it_leads_on_without_the_command(nodes: Nodes) -> None:
    process = nodes.start("--on-exit", "stay", python="print('once', flush=True)")
    read_line(process)
    assert "the command ended with exit code 0" in read_line(process)
    term = nodes.runs.record("job").fencing_token
    until = nodes.runs.record("job").lock_until
    wait_until(lambda: nodes.runs.record("job").lock_until > until, what="two renewals")
    process.terminate()
    assert nodes.runs.end(process) == (143, "once\n", "")
    record = nodes.runs.record("job")
    assert (record.is_held, record.fencing_token) == (False, (term or 0) + 1), "the last term, released"


def test_what_the_command_leaves_in_its_group_ends_before_the_leadership_does(nodes: Nodes) -> None:
    process = nodes.start("--on-exit", "resign", words=["sh", "-c", "sh -c 'trap \"\" TERM; sleep 60; :' & echo $!"])
    assert process.stdout is not None
    left = int(process.stdout.readline())
    wait_until(lambda: not nodes.runs.is_held(), what="the node resigned")
    assert not is_running(left)


# Losing the leadership


def test_i6_a_store_that_fails_ends_the_command_before_its_lease_ends(nodes: Nodes) -> None:
    """The command ends whatever it does about SIGTERM. It runs again when the store is back."""
    nodes.runs.store += "?timeout=100ms"
    process = nodes.start_leading("--lease-duration", "3s", python=STUBBORN)
    term = nodes.runs.record("job").fencing_token
    with closing(sqlite3.connect(nodes.runs.path("locks.db"), isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        [[lease_ends]] = connection.execute("SELECT (julianday(lock_until) - 2440587.5) * 86400 FROM shedlock")
        lines = [read_line(process) for _ in range(3)]
        assert ended_at(nodes.runs, term) < lease_ends
        connection.execute("ROLLBACK")
    assert "the store fails, trying again" in lines[1]
    assert "the store has not replied for so long that another node may lead soon; the command gets SIGTERM" in lines[2]
    assert 0.1 < float(re.findall(r"SIGKILL after (0\.\d)s", lines[2])[0]) <= 0.8
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"  # from the next term
    assert nodes.runs.record("job").fencing_token != term


def test_a_store_that_is_back_before_the_lease_ends_makes_no_leader_without_the_command(nodes: Nodes) -> None:
    nodes.runs.store += "?timeout=100ms"
    process = nodes.start_leading(
        "--lease-duration", "6s", python=SLEEPS.replace("ready", "ready\\n' + str(os.getpid()) + '")
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    with closing(sqlite3.connect(nodes.runs.path("locks.db"), isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        wait_until(lambda: not is_running(pid), what="the command gone")  # from SIGTERM, long before SIGKILL
        connection.execute("ROLLBACK")
    assert process.stdout.readline() == "ready\n"


def test_i6_a_redis_that_stands_still(nodes: Nodes) -> None:
    """By the time of the stopped server, the command has ended before another node could get the lease."""
    with private_server("redis", RedisServer) as server:
        nodes.runs.store = f"{server.url()}?timeout=300ms"
        nodes.runs.provider = provider_at(server.url())
        process = nodes.start_leading("--lease-duration", "6s", python=STUBBORN)
        term = nodes.runs.record("job").fencing_token
        server.pause()
        paused_at = time.time()
        wait_until(lambda: "gets SIGTERM" in read_line(process), what="the loss")
        assert ended_at(nodes.runs, term) < paused_at + 6
        process.terminate()
        server.resume()
    assert nodes.runs.end(process)[0] == 143


def test_a_leadership_that_is_taken_away_ends_the_command(nodes: Nodes) -> None:
    process = nodes.start_leading(python=STUBBORN)
    term = nodes.runs.record("job").fencing_token
    assert run("demote", "job", "--renew-deadline", "1s", store=nodes.runs.store).exit_code == 0
    read_line(process)
    line = read_line(process)
    assert "leadership was taken away" in line
    assert "SIGKILL after 0.4s" in line
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    now = nodes.runs.record("job")
    assert now.fencing_token is not None
    assert now.fencing_token > (term or 0)
    assert ended_at(nodes.runs, term) < now.locked_at.timestamp()


@LATER_ON_ASYNCPG
def test_i3_a_node_that_is_killed_takes_its_command_along(nodes: Nodes) -> None:
    first = nodes.start_leading(python=STUBBORN)
    term = nodes.runs.record("job").fencing_token
    second = nodes.start_waiting(python=STUBBORN)
    first.kill()
    lease_ends = nodes.runs.record("job").lock_until.timestamp()
    first.wait(10)
    assert second.stdout is not None
    assert second.stdout.readline() == "ready\n"
    assert ended_at(nodes.runs, term) < lease_ends
    assert nodes.runs.record("job").locked_at.timestamp() >= lease_ends


@pytest.mark.slow("several leases of real time")
def test_a_node_that_was_stopped_kills_its_command_when_it_goes_on(nodes: Nodes) -> None:
    """Until then the node cannot act; SHEDLOCK_TERM is for that time."""
    # Long enough to start the second node meanwhile, even on a busy machine
    first = nodes.start_leading("--lease-duration", "6s", "--grace", "700ms", python=STUBBORN)
    term = nodes.runs.record("job").fencing_token
    second = nodes.start_waiting()
    first.send_signal(signal.SIGSTOP)
    assert second.stdout is not None
    assert second.stdout.readline() == "ready\n"
    first.send_signal(signal.SIGCONT)
    read_line(first)
    assert "SIGKILL after 0ms" in read_line(first)
    assert "waiting; " in read_line(first)
    assert ended_at(nodes.runs, term)
    second.terminate()
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"  # it leads again


# Before the command runs


def test_a_store_that_is_down_at_the_start_is_waited_for(nodes: Nodes) -> None:
    with private_server("redis", RedisServer) as server:
        nodes.runs.store = f"{server.url()}?timeout=300ms"
        server.stop()
        process = nodes.start()
        line = read_line(process)
        assert line.startswith("shedlock: election 'job': the store does not reply, trying again: ")
        server.start()
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert nodes.runs.end(process)[0] == 143


def test_a_missing_table_is_not_waited_for(nodes: Nodes) -> None:
    with closing(sqlite3.connect(nodes.runs.path("locks.db"))) as connection:
        connection.execute("DROP TABLE shedlock")
    code, _, err = nodes.runs.end(nodes.start())
    assert (code, err.count("\n")) == (69, 1)
    assert "shedlock schema --create" in err


def test_a_command_that_cannot_be_found_takes_no_leadership(nodes: Nodes) -> None:
    code, _, err = nodes.runs.end(nodes.start(words=["no-such-program"]))
    assert (code, err) == (127, "shedlock: command not found: no-such-program\n")
    assert nodes.runs.provider.record("job") is None


def test_a_command_that_the_system_refuses_leaves_the_leadership_to_others(nodes: Nodes) -> None:
    path = nodes.runs.path("program")
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    code, _, err = nodes.runs.end(nodes.start(words=[str(path)]))
    assert code == 127
    assert err == f"shedlock: election 'job': cannot execute {path}: No such file or directory\n"
    assert not nodes.runs.record("job").is_held


def test_switched_off_it_leads_at_once_without_the_store(nodes: Nodes) -> None:
    variables = {"SHEDLOCK_ACTIVE": "0", "SHEDLOCK_STORE": None}
    code, out, err = nodes.runs.end(nodes.start(python="print('ran')", variables=variables))
    assert (code, out) == (0, "ran\n")
    assert "LOCKING IS SWITCHED OFF" in err


def test_an_elector_that_fails_ends_the_node(nodes: Nodes) -> None:
    program = (
        "from shedlock_py.election.program import Election\n"
        f"Election.run = lambda self: [][0]\n{PROGRAM}"
    )  # fmt: skip
    code, _, err = nodes.runs.end(nodes.start(program=program))
    assert code == 70
    assert "takes no part any more" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--renew-deadline", "14s"],
            "unsafe: --renew-deadline (14s) must not be longer than --lease-duration × 90%",
        ),
        (["--grace", "9s"], "--retry-period × 1.2 (2.4s) must be shorter than --renew-deadline - --grace"),
        (["--retry-period", "5s"], "--retry-period × 1.2 (6.0s) must be shorter than --renew-deadline - --grace"),
        (["--store", "memory://"], "locks in memory are private to this process"),
    ],
)
def test_settings_under_which_two_commands_could_run_are_refused(nodes: Nodes, arguments: list[str], text: str) -> None:
    process = nodes.start("--lease-duration", "15s", *arguments)
    code, out, err = nodes.runs.end(process)
    assert (code, out, err.count("\n")) == (78 if "memory" in text else 64, "", 1)
    assert text in err


# Health checks


def ask(port: int, path: str, address: str = "127.0.0.1") -> int:
    try:
        with urlopen(f"http://{address}:{port}{path}", timeout=10) as reply:
            code: int = reply.status
            return code
    except HTTPError as error:
        with error:
            return error.code


def test_a_health_check_says_whether_this_node_leads(nodes: Nodes, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    nodes.start_leading("--health-port", str(ports[0]))
    nodes.start_waiting("--health-port", str(ports[1]), "--health-host", "127.0.0.1")
    assert [ask(ports[0], path) for path in ("/", "/leader", "/x")] == [200, 200, 404]
    assert [ask(ports[1], path) for path in ("/", "/leader")] == [200, 503]


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_health_checks_over_ipv6(nodes: Nodes) -> None:
    """ "All addresses" includes both families, for probes of clusters with IPv6 only."""
    ports = [free_port(), free_port()]
    nodes.start_leading("--health-port", str(ports[0]), "--health-host", "::")
    nodes.start_waiting("--health-port", str(ports[1]), "--health-host", "::1")
    assert [ask(ports[0], "/", address) for address in ("127.0.0.1", "[::1]")] == [200, 200]
    assert ask(ports[1], "/leader", "[::1]") == 503
    with pytest.raises(URLError, match="refused"):
        ask(ports[1], "/")


def test_a_port_that_is_taken(nodes: Nodes) -> None:
    port = free_port()
    nodes.start_leading("--health-port", str(port), "--health-host", "127.0.0.1")
    code, _, err = nodes.runs.end(nodes.start("--health-port", str(port), "--health-host", "127.0.0.1"))
    assert code == 69
    assert err == (
        f"shedlock: cannot listen on 127.0.0.1 port {port}: Address already in use; another --health-port may be free\n"
    )


def test_a_check_that_resets_its_connection_prints_nothing(nodes: Nodes) -> None:
    """A load balancer does so every few seconds."""
    port = free_port()
    leader = nodes.start_leading("--health-port", str(port), "--health-host", "127.0.0.1")
    for request in (b"", b"GET / HTTP/1.0\r\n\r\n") * 3:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets it
    assert ask(port, "/") == 200
    leader.send_signal(signal.SIGTERM)
    _, _, err = nodes.runs.end(leader)
    assert "Traceback" not in err
    assert "Exception" not in err


def test_a_health_check_listens_on_the_loopback_address_only(nodes: Nodes) -> None:
    port = free_port()
    nodes.start_leading("--health-port", str(port))
    assert ask(port, "/") == 200
    with pytest.raises(URLError, match="refused"):
        ask(port, "/", "127.0.0.2")


def test_clients_that_drip_keep_no_probe_waiting_and_no_descriptor(nodes: Nodes) -> None:
    """Forty clients: beyond its limit, the server closes a connection at once."""
    port = free_port()
    leader = nodes.start_leading("--health-port", str(port))
    with ExitStack() as stack:
        dripping = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(40)]
        descriptors = Path(f"/proc/{leader.pid}/fd")
        wait_until(lambda: ended(dripping) == 8, what="those beyond the 32 connections are closed")
        assert len(list(descriptors.iterdir())) < 60
        for _ in range(3):
            for connection in dripping:
                with suppress(OSError):
                    connection.send(b"G")
            assert ask(port, "/") == 200


def ended(connections: list[socket.socket]) -> int:
    found = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            found += connection.recv(1) == b""
        except BlockingIOError:
            pass
        except OSError:
            found += 1
    return found


def test_a_host_name_that_cannot_be_one(nodes: Nodes) -> None:
    code, _, err = nodes.runs.end(nodes.start("--health-port", "9000", "--health-host", "a..b"))
    assert (code, err) == (69, "shedlock: cannot listen on a..b port 9000: this is not a host name\n")


def test_an_address_of_another_machine(nodes: Nodes) -> None:
    code, _, err = nodes.runs.end(nodes.start("--health-port", str(free_port()), "--health-host", "192.0.2.1"))
    assert code == 69
    assert re.fullmatch(r"shedlock: cannot listen on 192.0.2.1 port \d+: Cannot assign requested address\n", err)
