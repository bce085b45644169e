"""The fork server: a program in its child ends, reads and writes as in a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.forked import PROJECT, Program
from tests.support.polling import wait_until
from tests.support.processes import is_running


def run_true(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload, no-any-return]


ENDINGS = {
    "the end of the program": ("pass", 0, ""),
    "sys.exit": ("import sys; sys.exit()", 0, ""),
    "an exit code": ("raise SystemExit(7)", 7, ""),
    "a large exit code": ("raise SystemExit(-1)", 255, ""),
    "a message": ("raise SystemExit('why')", 1, "why\n"),
    "an exception": ("1/0", 1, "ZeroDivisionError: division by zero\n"),
    "a syntax error": ("1/", 1, "SyntaxError: invalid syntax\n"),
    "Ctrl-C": ("import signal; signal.raise_signal(signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt\n"),
    "SIGTERM": ("import signal; signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM, ""),
    "os._exit": ("import os; os._exit(3)", 3, ""),
    "an exit function": (
        "import atexit, sys; atexit.register(sys.stderr.write, 'last'); raise SystemExit(4)",
        4,
        "last",
    ),
    "a thread": (
        "import sys, threading, time\n"
        "threading.Thread(target=lambda: (threading.main_thread().join(), sys.stderr.write('thread'))).start()",
        0,
        "thread",
    ),
}


@pytest.mark.parametrize("starts", [forked.run, run_true], ids=["forked", "interpreter"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_in_a_fork_as_in_a_new_interpreter(ending: str, starts: object) -> None:
    assert callable(starts)
    code, status, error = ENDINGS[ending]
    done = starts(["-c", f"print('before')\n{code}"] if "syntax" not in ending else ["-c", code])
    assert done.returncode == status
    assert done.stderr.endswith(error)
    assert bool(done.stderr) == bool(error)
    assert done.stdout == ("" if "syntax" in ending else "before\n")


FATAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
STATE = """
import os, signal, sys
print(sys.argv[1:], os.getcwd(), os.environ.get("GIVEN"), os.environ.get("HOME"), sys.path[:2])
print(sys.stdin.read(), sys.stdout.encoding, sys.stderr.errors, __name__, __package__, sys.modules["__main__"].STATE)
ignored = {signum.name for signum in signal.valid_signals() if signal.getsignal(signum) is signal.SIG_IGN}
print(sorted(ignored - set(os.environ["INHERITED"].split())))
print(signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(sorted(os.listdir("/proc/self/fd"), key=int)[:-1])
STATE = 2
"""


@pytest.mark.parametrize("kind", ["-c", "-m", "file"])
def test_a_program_finds_what_a_new_interpreter_would_give_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"STATE = 1\n{STATE}")
    words = {"-c": ["-c", f"STATE = 1\n{STATE}"], "-m": ["-m", "mine"], "file": ["mine.py"]}[kind] + ["one", "two"]
    env = {"PATH": os.environ["PATH"], "GIVEN": "yes", "PYTHONPATH": str(PROJECT), "PYTHONIOENCODING": "latin-1"}
    # nohup makes its program ignore SIGHUP. A new interpreter still ignores it; a forked child starts afresh.
    env["INHERITED"] = " ".join(signum.name for signum in FATAL if signal.getsignal(signum) is signal.SIG_IGN)
    env |= {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LANG", "LC_"))} | env
    expected = run_true(words, input="typed", cwd=tmp_path, env=env)
    assert (expected.returncode, expected.stderr) == (0, "")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        done = forked.run(words, input="typed", cwd=tmp_path, env=env)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected.stdout


def test_a_module_is_run_as_main() -> None:
    words = ["-m", "shedlock_py", "list", "--colour"]
    done, expected = forked.run(words), run_true(words)
    assert (done.returncode, done.stdout, done.stderr) == (64, expected.stdout, expected.stderr)


def test_warnings_may_be_errors() -> None:
    """Warnings of objects that the interpreter destroys at its end are errors too."""
    code = "import socket; left_open = socket.socket()"
    for words in (["-c", code], ["-W", "error", "-c", code]):
        done, expected = forked.run(words), run_true(words)
        assert ("ResourceWarning" in done.stderr) == ("ResourceWarning" in expected.stderr) == ("-W" in words)


def test_a_variable_that_only_a_new_interpreter_obeys_is_refused() -> None:
    with pytest.raises(ValueError, match=r"PYTHONSAFEPATH: .*use subprocess"):
        forked.run(["-c", ""], env={**os.environ, "PYTHONSAFEPATH": "1"})


ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


def pipes() -> dict[str, Any]:
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def test_two_at_once_with_pipes_of_their_own() -> None:
    with Program(["-c", ECHO], **pipes()) as one, Program(["-c", ECHO], **pipes()) as other:
        for program, word in [(one, "one"), (other, "other"), (one, "again")]:
            assert program.stdin is not None
            assert program.stdout is not None
            print(word, file=program.stdin, flush=True)
            assert program.stdout.readline() == f"{word.upper()}\n"
        assert one.pid != other.pid
        # the other process does not hold its pipes
        assert (one.communicate("last")[0], one.returncode) == ("LAST\n", 0)
        assert other.poll() is None
    assert other.returncode == 0


def test_a_signal_ends_it_and_the_parent_reads_which() -> None:
    with Program(["-c", "import signal\nwhile True: signal.pause()"], **pipes()) as program:
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            program.communicate(timeout=-1)
        program.kill()
        assert (program.wait(20), program.poll()) == (-9, -9)
        program.terminate()  # the process has ended already
        program.send_signal(signal.SIGINT)


def test_its_process_id_is_not_used_again_before_the_parent_has_seen_its_end() -> None:
    program = Program(["-c", ""])
    wait_until(lambda: not is_running(program.pid), what="the end of the program")
    os.kill(program.pid, 0)
    assert program.wait() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)


def test_in_a_session_of_its_own() -> None:
    code = "import os; print(os.getpid() == os.getsid(0) == os.getpgid(0))"
    assert forked.run(["-c", code]).stdout == "False\n"
    assert forked.run(["-c", code], start_new_session=True).stdout == "True\n"


def test_errors_may_go_where_the_output_goes(tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('error', file=sys.stderr)"
    with (tmp_path / "log").open("w") as log:
        assert Program(["-c", code], stdout=log, stderr=subprocess.STDOUT).wait(20) == 0
    assert (tmp_path / "log").read_text() == "out\nerror\n"


def test_the_programs_end_with_the_process_that_started_them() -> None:
    tests = """
        import os
        from tests.support.forked import Program
        program = Program(["-c", "import time; print('ready', flush=True); time.sleep(600)"], stdout=-1)
        program.stdout.readline()
        print(program.pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    killed = run_true(["-c", textwrap.dedent(tests)], cwd=PROJECT)
    assert killed.returncode == -9
    wait_until(lambda: not is_running(int(killed.stdout)), what="the end of the program")
