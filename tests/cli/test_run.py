"""`shedlock run`: arguments and streams, exit codes, skips, mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import click
import pytest

from shedlock_py import LockRequest, Settings
from shedlock_py.cli import child, common
from shedlock_py.cli.lead import lead as lead_command
from shedlock_py.cli.once import once as once_command
from shedlock_py.cli.run import run as run_command
from tests.cli import terminal
from tests.cli.harness import in_a_process, run, shedlock_command, take
from tests.cli.runs import ALSO_ON_ASYNCPG, LATER_ON_ASYNCPG, Runs
from tests.observability.services import Service
from tests.support.polling import wait_until
from tests.support.ports import free_port
from tests.support.scripts import PROJECT

PAGE = Path(__file__).parents[2] / "docs/reference/command-line.md"
REPORT = (
    "import json, os, sys; "
    "print(json.dumps([sys.argv[1:], sys.stdin.read(), {k: v for k, v in os.environ.items() if 'SHEDLOCK_' in k}])); "
    "print('to stderr', file=sys.stderr); sys.exit(7)"
)


@in_a_process
@ALSO_ON_ASYNCPG
def test_streams_arguments_environment_and_exit_code_are_passed_through(runs: Runs) -> None:
    arguments = ["-x", "--at-most", "--", "ä ö", "--help", ""]
    (runs.directory / "stdin").write_text("some input")
    with (runs.directory / "stdin").open() as stdin:
        code, out, err = runs.run(
            "job", "--at-most", "1m",
            words=[sys.executable, "-c", REPORT, *arguments],
            stdin=stdin,
            variables={"SHEDLOCK_OF_MINE": "kept", "SHEDLOCK_FENCING_TOKEN": "of an outer run"},
        )  # fmt: skip
    assert (code, err) == (7, "to stderr\n")
    got_arguments, got_stdin, environ = json.loads(out)
    assert (got_arguments, got_stdin) == (arguments, "some input")
    record = runs.record()
    assert not record.is_held
    assert environ["SHEDLOCK_LOCK_NAME"] == "job"
    assert record.fencing_token == int(environ["SHEDLOCK_FENCING_TOKEN"]) + 1, "the release moved it on"
    assert environ["SHEDLOCK_OF_MINE"] == "kept"


@in_a_process
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="Linux has it")
@pytest.mark.parametrize(
    "given",
    [
        [],
        pytest.param(["LC_CTYPE=C.UTF-8"], marks=pytest.mark.slow("starts an interpreter")),
        pytest.param(["LANG=C"], marks=pytest.mark.slow("starts an interpreter")),
    ],
)
def test_the_environment_is_passed_through_also_without_a_locale(store: str, given: list[str]) -> None:
    """Under cron, Python sets LC_CTYPE at its start."""
    variables = [f"SHEDLOCK_STORE={store}", f"PYTHONPATH={PROJECT}", *given]
    words = ["env", "-i", *variables, *terminal.command("run", "job", "--at-most", "1m", "--", "/usr/bin/env")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    added = ("SHEDLOCK_LOCK", "SHEDLOCK_FENCING", "PWD=")  # the shell adds the last when it starts the Python of a row
    found = {line for line in done.stdout.splitlines() if not line.startswith(added)}
    assert found == set(variables)


@pytest.mark.slow("starts two interpreters")
@in_a_process
@LATER_ON_ASYNCPG
def test_other_open_files_are_passed_through_and_none_of_ours(runs: Runs) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"from a pipe")
    os.close(writer)
    python = (
        f"import os; print(os.read({reader}, 100), "
        f"[n for n in set(os.listdir('/proc/self/fd')) - {{'0', '1', '2', '{reader}'}} "
        "if os.path.exists(f'/proc/self/fd/{n}')])"
    )
    assert runs.run("job", "--at-most", "1m", python=python, pass_fds=[reader], is_forked=False) == (
        0,
        "b'from a pipe' []\n",
        "",
    )
    os.close(reader)


@in_a_process
@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("", 0),
        ("raise SystemExit(1)", 1),
        ("raise SystemExit(255)", 255),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
        ("import os; os.kill(os.getpid(), 15)", 128 + 15),
    ],
)
def test_the_exit_code_is_that_of_the_command(runs: Runs, python: str, expected: int) -> None:
    assert runs.run("job", "--at-most", "1m", python=python) == (expected, "", "")
    assert not runs.is_held()


@in_a_process
def test_a_command_that_cannot_run_takes_no_lock(runs: Runs) -> None:
    plain = runs.path("plain.sh")
    plain.write_text("exit 0\n")
    for command, code, text in [
        ("no-such-command", 127, "command not found: no-such-command"),
        (str(runs.path("missing")), 127, f"command not found: {runs.path('missing')}"),
        (str(plain), 126, f"not executable: {plain}"),
        (str(runs.directory), 126, f"not executable: {runs.directory}"),
        ("", 127, "command not found: "),
    ]:
        assert runs.run("job", "--at-most", "1m", words=[command]) == (code, "", f"shedlock: {text}\n")
    assert runs.provider.record("job") is None


@in_a_process
def test_a_script_without_an_interpreter_is_run_by_the_shell(runs: Runs) -> None:
    """Shells, cron, timeout and flock do so too."""
    script = runs.path("script")
    script.write_text('echo "$0" "$2" "$SHEDLOCK_LOCK_NAME"; exit 3\n')
    script.chmod(0o755)
    done = runs.run("job", "--at-most", "1m", words=[str(script), "-a", "b c"])
    assert done == (3, f"{script} b c job\n", "")


@in_a_process
def test_without_a_token_there_is_none_in_the_environment(runs: Runs) -> None:
    runs.use_provider(
        "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider\n"
        f"provider = SqlAlchemyLockProvider({runs.store!r}, extra_columns=False)\n"
    )
    variables: dict[str, str | None] = {"SHEDLOCK_FENCING_TOKEN": "1"}
    python = "import os; print(os.environ['SHEDLOCK_LOCK_NAME'], 'SHEDLOCK_FENCING_TOKEN' in os.environ)"
    assert runs.run("job", "--at-most", "1m", python=python, variables=variables) == (0, "job False\n", "")
    code, out, err = runs.run("job", "--at-most", "1m", "--once-per", "1h", python="", variables=variables)
    assert (code, out, err.count("\n")) == (78, "", 1)
    assert "last_fire_time" in err


@in_a_process
def test_a_skip_is_silent_and_a_success_unless_one_asks(runs: Runs) -> None:
    take(runs.provider, "job", holder="web-1:42")
    python = "print('ran')"
    assert runs.run("job", "--at-most", "1m", python=python) == (0, "", "")
    assert runs.run("job", "--at-most", "1m", "--skip-exit-code", "99", python=python) == (99, "", "")
    code, out, err = runs.run("job", "--at-most", "1m", "-v", python=python)
    assert (code, out) == (0, "")
    assert re.fullmatch(r"shedlock: 'job' is skipped: held by web-1:42 since \d\d:\d\d:\d\d\n", err)
    words = terminal.command("run", "job", "--at-most", "1m", "--", sys.executable, "-c", python)
    with terminal.Terminal(words, SHEDLOCK_STORE=runs.store) as person:
        assert person.end() == 0
    assert "shedlock: 'job' is skipped: held by web-1:42 since" in person.text


@in_a_process
def test_a_skip_reads_the_record_only_to_print_it(runs: Runs) -> None:
    """Otherwise a skip would cost two requests, and fail if the store fails after the first."""
    take(runs.provider, "job")
    runs.use_provider(
        "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider\n"
        "class Provider(SqlAlchemyLockProvider):\n"
        "    def record(self, name):\n"
        "        open('read', 'w').close()\n"
        "        raise ValueError(name)\n"
        f"provider = Provider({runs.store!r})\n"
    )
    assert runs.run("job", "--at-most", "1m", python="print('ran')", cwd=runs.directory) == (0, "", "")
    assert not runs.path("read").exists()
    ended = runs.run("job", "--at-most", "1m", "-v", python="print('ran')", cwd=runs.directory)
    assert ended == (0, "", "shedlock: 'job' is skipped: it was held\n")
    assert runs.path("read").exists()


@in_a_process
def test_wait_gets_the_lock_when_it_is_released(runs: Runs) -> None:
    lease = take(runs.provider, "job")
    waiting = runs.start("job", "--at-most", "1m", "--wait", "25s", python="print('ran')")
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2.5)  # it retries and waits on
    runs.provider.release(lease)
    assert runs.end(waiting) == (0, "ran\n", "")


@in_a_process
def test_a_wait_ends_as_a_skip_if_the_lock_stays_held(runs: Runs) -> None:
    take(runs.provider, "job")
    options = ("--at-most", "1m", "--wait", "700ms", "--skip-exit-code", "9")
    assert runs.run("job", *options, python="print('ran')") == (9, "", "")


@in_a_process
def test_only_the_command_is_waited_for_and_not_what_it_leaves_behind(runs: Runs) -> None:
    python = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    process = runs.start("job", "--at-most", "1m", python=python)
    assert process.wait(20) == 0
    assert process.stdout is not None
    left = int(process.stdout.readline())
    os.kill(left, 9)  # the process was there, with our standard output open
    assert not runs.is_held()


@in_a_process
def test_a_release_that_fails_is_one_line_and_nothing_else(runs: Runs) -> None:
    python = (
        f"import sqlite3; connection = sqlite3.connect({str(runs.path('locks.db'))!r}); "
        "connection.execute('DROP TABLE shedlock'); connection.commit(); raise SystemExit(5)"
    )
    code, out, err = runs.run("job", "--at-most", "1m", python=python)
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert err.startswith("shedlock: lock 'job' could not be released, and is held until its lease ends: ")


@pytest.mark.slow("starts two interpreters")
@in_a_process
def test_closed_streams_do_no_harm(runs: Runs) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "shedlock_py", "run", "job", "--at-most", "1m",
         "-v", "--store", runs.store, "--", sys.executable, "-c", "raise SystemExit(4)"],
        timeout=30,
        check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert not runs.is_held()


@in_a_process
def test_what_its_variables_are_for(runs: Runs) -> None:
    variables = {
        "SHEDLOCK_LOCK_AT_MOST_FOR": "2m",
        "SHEDLOCK_LOCK_AT_LEAST_FOR": "1m",
        "SHEDLOCK_HOLDER": "me",
        "SHEDLOCK_KEEP_ALIVE": "true",
        "SHEDLOCK_SKIP_EXIT_CODE": "44",
        "SHEDLOCK_WAIT": "100ms",
        "SHEDLOCK_GRACE": "1s",
    }
    untried = {str(param.envvar) for param in run_command.params if param.envvar} - {"SHEDLOCK_STORE", *variables}
    assert not untried, f"give {', '.join(untried)} a value in this test"
    assert runs.run("job", python="print('ran')", variables={**variables}) == (0, "ran\n", "")
    record = runs.record()
    assert (record.holder, record.is_held) == ("me", True)  # during its minimum hold
    code, out, err = runs.run("job", "-v", python="print('ran')", variables={**variables})
    assert (code, out) == (44, "")
    assert "held by me" in err
    code, _, err = runs.run("job", variables={**variables, "SHEDLOCK_KEEP_ALIVE": "perhaps"})
    assert (code, "SHEDLOCK_KEEP_ALIVE" in err) == (64, True)
    empty = dict.fromkeys([*variables], "") | {"SHEDLOCK_LOCK_AT_MOST_FOR": "1m"}
    assert runs.run("other", python="print('ran')", variables={**empty}) == (0, "ran\n", "")


def test_the_command_line_and_from_env_read_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, expected in ("true yes on 1 t y True", True), ("false no off 0 f n NO", False):
        for word in words.split():
            monkeypatch.setenv("SHEDLOCK_KEEP_ALIVE", word)
            context = run_command.make_context("run", ["job", "--at-most", "1m", "--", "true"])
            assert (word, context.params["keep_alive"], Settings.from_env().keep_alive) == (word, expected, expected)


@pytest.mark.parametrize(
    ("variable", "arguments", "expected"),
    [
        ("2h", [], timedelta(hours=2)),
        ("2h", ["--no-keep-alive"], False),
        ("2h", ["--keep-alive"], True),
        ("false", ["--keep-alive-for", "3h"], timedelta(hours=3)),
    ],
)
def test_a_limit_of_keep_alive_comes_from_the_variable_or_from_the_option(
    variable: str, arguments: list[str], expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    monkeypatch.setattr("shedlock_py.cli.guarded.Guarded", lambda *_, keep_alive, **__: found.append(keep_alive))
    result = run(
        "run", "job", "--at-most", "1m", *arguments, "--", "true", store="nosuch", SHEDLOCK_KEEP_ALIVE=variable
    )
    assert (result.exit_code, found) == (common.CONFIG, [expected])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep-alive-for", "30s"], "--keep-alive-for (0:00:30) must be longer than --at-most (0:01:00)"),
        (["--no-keep-alive", "--keep-alive-for", "2h"], "--no-keep-alive and --keep-alive-for exclude each other"),
    ],
)
def test_a_limit_of_keep_alive_that_cannot_work(arguments: list[str], message: str) -> None:
    result = run("run", "job", "--at-most", "1m", *arguments, "--", "true", store="nosuch")
    assert (result.exit_code, message in result.stderr) == (common.USAGE, True)


COMMON_CODES = {common.USAGE, common.UNAVAILABLE, common.SOFTWARE, common.CONFIG, child.NOT_EXECUTABLE, child.NOT_FOUND}


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        (run_command, {common.OK, common.LOST} | COMMON_CODES),
        (once_command, {common.OK, common.NO, common.LOST, common.NOT_DONE} | COMMON_CODES),
        (lead_command, COMMON_CODES),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_help_and_the_page_name_every_exit_code(command: click.Command, codes: set[int]) -> None:
    page = PAGE.read_text()
    done = run(str(command.name), "--help")
    in_help = {int(code) for code in re.findall(r"^    (\d+) ", done.stdout, re.MULTILINE)}
    assert in_help == codes
    table = dict(re.findall(r"^\| (\d+) +\| (.+?) +\|", page.partition("## Exit codes")[2], re.MULTILINE))
    of_others = {common.NO, common.INTERRUPTED, common.IO_ERROR, common.NOT_DONE}
    assert {int(code) for code in table} == {common.OK, common.LOST} | COMMON_CODES | of_others


@in_a_process
def test_switched_off_it_runs_without_a_store_and_without_an_end(runs: Runs) -> None:
    code, out, err = runs.run(
        "job", "--at-most", "200ms", "--at-least", "1m", "--once-per", "1d",
        python="import time; time.sleep(0.6); print('ran')",
        variables={"SHEDLOCK_ACTIVE": "0", "SHEDLOCK_STORE": None},
    )  # fmt: skip
    assert (code, out, err.count("\n")) == (0, "ran\n", 1)
    assert "LOCKING IS SWITCHED OFF" in err


@in_a_process
@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        ("nosuch://user:s3cret-pw@host/db", 78, "unknown scheme 'nosuch'"),
        ("memory://", 78, "private to this process"),
        ("shedlock_py.providers.memory:InMemoryLockProvider", 78, "private to this process"),
        ("redis://:s3cret-pw@127.0.0.1:{port}/0", 69, "Connection refused"),
        ("sqlite:///{directory}/empty.db", 69, "shedlock schema --create"),
        ("shedlock_py.providers.memory:AsyncInMemoryLockProvider", 78, "private to this process"),
        ("sqlite+aiosqlite:///{directory}/empty.db", 69, "shedlock schema --create"),
        ("sqlite://locks.db", 78, "a SQLite file needs three slashes"),
        ("sqlite://data/locks.db", 78, "a SQLite file needs three slashes"),
        ("sqlite://C:\\data\\locks.db", 78, "a SQLite file needs three slashes"),
        ("sqlite+aiosqlite://", 78, "an in-memory SQLite database is private"),
        ("postgresql+asyncpg://user:s3cret-pw@127.0.0.1:{port}/db", 69, "127.0.0.1"),
        ("postgresql+nonsense://user:s3cret-pw@127.0.0.1/db", 78, "unknown driver in postgresql+nonsense://"),
    ],
)
def test_a_store_that_does_not_work_is_one_line(runs: Runs, url: str, code: int, text: str) -> None:
    url = url.replace("{directory}", str(runs.directory)).replace("{port}", str(free_port()))
    runs.store = url
    got, out, err = runs.run("job", "--at-most", "1m", python="print('ran')")
    assert (got, out, err.count("\n")) == (code, "", 1), err
    assert err.startswith("shedlock: ")
    assert text in err
    assert "s3cret" not in err


@in_a_process
def test_debug_shows_more_but_no_password(runs: Runs) -> None:
    program = "import sys; sys.argv.insert(1, '--debug'); from shedlock_py.__main__ import main; main()"
    variables = {"SHEDLOCK_STORE": f"redis://:s3cret-pw@127.0.0.1:{free_port()}/0"}
    code, out, err = runs.run("job", "--at-most", "1m", python="print()", program=program, variables={**variables})
    assert (code, out) == (69, "")
    assert "Traceback" in err
    assert "s3cret" not in err
    code, out, err = runs.run("job", "--at-most", "1m", python="raise SystemExit(3)", program=program)
    assert code == 3
    assert "lock 'job' acquired" in err
    assert "lock 'job': task failed after" in err
    assert "lock 'job': LockReleased" in err


@pytest.mark.slow("imports a large client")
@in_a_process
def test_debug_shows_no_credentials_of_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod of EKS, botocore trades a token for credentials, and logs both at DEBUG."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("s3cret-web-identity")
    keys = "".join(
        f"<{key}>{value}</{key}>"
        for key, value in {
            "AccessKeyId": "AKID", "SecretAccessKey": "s3cret-key", "SessionToken": "s3cret-session",
            "Expiration": "2090-01-01T00:00:00Z",
        }.items()
    )  # fmt: skip
    reply = "AssumeRoleWithWebIdentityRe{}"
    with closing(Service()) as service:
        service.body = (
            f"<{reply.format('sponse')}><{reply.format('sult')}><Credentials>{keys}</Credentials>"
            f"</{reply.format('sult')}></{reply.format('sponse')}>"
        ).encode()
        done = shedlock_command(
            "--debug", "list",
            store=f"dynamodb://locks?region=eu-west-1&endpoint={service.url}",
            AWS_ROLE_ARN="arn:aws:iam::123456789012:role/app", AWS_WEB_IDENTITY_TOKEN_FILE=str(tmp_path / "token"),
            AWS_ENDPOINT_URL_STS=service.url, AWS_REGION="eu-west-1", AWS_DEFAULT_REGION="eu-west-1",
        )  # fmt: skip
        bodies = b"".join(request.body for request in service.requests)
    assert b"s3cret-web-identity" in bodies
    assert [request.headers for request in service.requests if "AKID" in request.headers.get("Authorization", "")]
    assert "s3cret" not in done.stderr


@pytest.mark.slow("imports a large client")
@in_a_process
def test_debug_shows_no_credentials_of_a_kubeconfig(tmp_path: Path) -> None:
    """The official client renews a login of OpenID Connect through requests_oauthlib, which logs it at DEBUG."""
    expired = "e30.eyJleHAiOiAxfQ.x"  # {}, {"exp": 1}
    with closing(Service()) as service:
        service.body = json.dumps({
            "token_endpoint": f"{service.url}/token",
            "id_token": "s3cret-id", "refresh_token": "s3cret-next", "access_token": "s3cret", "token_type": "Bearer",
        }).encode()  # fmt: skip
        config = {
            "client-id": "me", "client-secret": "s3cret-client", "id-token": expired,
            "refresh-token": "s3cret-refresh", "idp-issuer-url": service.url,
        }  # fmt: skip
        kubeconfig = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"auth-provider": {"name": "oidc", "config": config}}}],
        }
        (tmp_path / "config").write_text(json.dumps(kubeconfig))
        done = shedlock_command(
            "--debug", "list",
            store=f"kubernetes://jobs?kubeconfig={tmp_path / 'config'}", OAUTHLIB_INSECURE_TRANSPORT="1",
        )  # fmt: skip
        bodies = b"".join(request.body for request in service.requests)
    assert b"s3cret-refresh" in bodies
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["job"], "Missing option '--at-most' (env var: 'SHEDLOCK_LOCK_AT_MOST_FOR')"),
        (["--at-most", "1m"], "Missing argument 'NAME'"),
        (["job", "more", "--at-most", "1m"], "unexpected extra argument (more)"),
        (["job", "--at-most", "10"], "'10' is not a duration; write for example 10m"),
        (["job", "--at-most", "1ms"], "--at-most (0:00:00.001000) is too short"),
        (["job", "--at-most", "1m", "--at-least", "2m"], "--at-least (0:02:00) is longer than --at-most (0:01:00)"),
        (["a\tb", "--at-most", "1m"], "lock name has a control character"),
        (["n" * 65, "--at-most", "1m"], "65 characters; the maximum is 64"),
        (["lock_at_most_for\t", "--at-most", "1m"], "lone surrogate: 'lock_at_most_for\\t'"),
        (["job", "--at-most", "1m", "--holder", "h" * 201], "holder has 201 characters"),
        (["job", "--at-most", "1m", "--skip-exit-code", "256"], "0<=x<=255"),
        (["job", "--at-moist", "1m"], "Did you mean"),
    ],
)
def test_a_mistake_is_one_line_with_a_hint(store: str, arguments: list[str], text: str) -> None:
    done = run("run", *arguments, "--", "echo", "ran", store=store)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (64, "", 1), done.stderr
    assert text in done.stderr
    assert done.stderr.endswith(" run --help)\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("run job --at-most 1m", "no command: shedlock run NAME --at-most 10m -- COMMAND"),
        ("run job --at-most 1m --", "no command: shedlock run NAME --at-most 10m -- COMMAND"),
        ("run job --at-most 1m true", "put -- before the command: shedlock run NAME --at-most 10m -- COMMAND"),
        ("run job --at-most 1m rsync -a b", "put -- before the command: shedlock run NAME --at-most 10m -- COMMAND"),
        ("lead job true", "put -- before the command: shedlock lead NAME -- COMMAND"),
    ],
)
def test_the_command_needs_two_dashes(words: str, hint: str) -> None:
    """Otherwise `run job rsync -v` would take an option of rsync."""
    done = run(*words.split(), store="sqlite:///x.db")
    assert done.exit_code == 64
    assert hint in done.stderr


@in_a_process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_standard_error_that_cannot_be_written_changes_no_exit_code(runs: Runs) -> None:
    assert runs.provider.acquire(LockRequest("job", "1m"))
    with Path("/dev/full").open("w") as full:
        done = runs.start("job", "--at-most", "1m", "-v", "--skip-exit-code", "9", python="", stderr=full)
        assert runs.end(done)[0] == 9
        done = runs.start("job", "--at-most", "1m", python="", variables={"SHEDLOCK_STORE": "no"}, stderr=full)
        assert runs.end(done)[0] == 78


@in_a_process
def test_an_internal_error_leaves_no_command_behind(runs: Runs) -> None:
    program = (
        "from shedlock_py.cli.child import Child\n"
        "def fail(*_): raise RuntimeError('a bug')\n"
        "Child.pass_on = fail\n"
        "from shedlock_py.__main__ import main; main()"
    )
    python = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    process = runs.start("job", "--at-most", "1m", python=python, program=program, cwd=runs.directory)
    pid = int(runs.wait_for("pid"))
    process.terminate()
    code, _, err = runs.end(process)
    assert (code, err) == (70, "shedlock: internal error: RuntimeError: a bug; --debug shows more\n")
    assert not Path(f"/proc/{pid}").exists()
    assert not runs.is_held()


@in_a_process
@LATER_ON_ASYNCPG
def test_killed_by_force_its_command_dies_and_its_lease_ends_by_itself(runs: Runs) -> None:
    python = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    process = runs.start("job", "--at-most", "2s", python=python, cwd=runs.directory)
    pid = int(runs.wait_for("pid"))
    process.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the command gone")
    wait_until(lambda: runs.provider.acquire(LockRequest("job", "1m")), what="the lock free")
