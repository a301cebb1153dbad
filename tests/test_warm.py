"""tests/warm.py: what a process that is forked has in common with one that starts Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests import leftovers
from tests.client.deployments import Node
from tests.conftest import answering, binary, start
from tests.warm import WarmPopen

SHOWN = """
import os, sys
print(sys.argv, __name__, os.getcwd(), os.environ["GIVEN"], "redis" in sys.modules, os.getsid(0) == os.getpid())
print(sys.stdin.read(), file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture(params=["warm", pytest.param("real", marks=pytest.mark.real_process)])
def how(request):
    return request.param


def test_process_has_its_own_words_folder_files_and_session_when_it_is_forked(how, tmp_path):
    env = {**os.environ, "GIVEN": "ä"}
    ran = subprocess.run(
        [sys.executable, "-c", SHOWN, "a", "b"], input="typed", capture_output=True, text=True,
        cwd=tmp_path, env=env, start_new_session=True,
    )  # fmt: skip
    assert ran.stdout == f"['-c', 'a', 'b'] __main__ {tmp_path} ä {how == 'warm'} True\n"
    assert (ran.returncode, ran.stderr) == (3, "typed\n")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("1 / 0", 1),
        ("import atexit; atexit.register(print, 'last')", 0),
        ("import threading; threading.Timer(0.01, print, ['last']).start()", 0),
    ],
)
def test_process_ends_as_any_other_when_it_is_forked(how, program, code):
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == code
    assert ("ZeroDivisionError" in ran.stderr) is (code == 1)
    assert ran.stdout == ("last\n" if code == 0 else "")


@pytest.mark.parametrize(
    ("given", "code", "text"), [("None", 0, ""), ("259", 3, ""), ("'why'", 1, "why\n")]
)
def test_process_ends_with_the_code_that_it_gives_when_it_is_forked(how, given, code, text):
    command = [sys.executable, "-c", f"import sys; sys.exit({given})"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (code, text)


def test_process_reports_that_its_output_is_closed_when_it_is_forked(how):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "print('nobody reads this')"]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=env)
    os.close(writing)
    assert ran.returncode == 120
    assert "BrokenPipeError" in ran.stderr


def test_process_is_waited_for_and_killed_when_it_is_forked(how):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert isinstance(process, WarmPopen)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["-I", "-c", "{}"], {}),
        (["-c", "{}"], {"env": {**os.environ, "PYTHONHASHSEED": "1"}}),
        (["-c", "{}"], {"preexec_fn": os.getpid}),
        (["-c", "{}"], {"close_fds": False}),
    ],
)
def test_process_starts_python_when_that_could_make_a_difference(words, given):
    program = "import sys; print('redis' in sys.modules)"
    command = [sys.executable, *(word.format(program) for word in words)]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, **given).stdout == "False\n"


def test_guard_kills_servers_when_they_have_the_mark_of_a_run(monkeypatch, tmp_path):
    monkeypatch.setenv(leftovers.MARK, "another run")
    node = Node(binary() or "", tmp_path)
    with start(binary() or "", tmp_path, "--port", "0", "--unixsocket", f"{tmp_path}/s") as process:
        answering(process, tmp_path, unix_socket_path=f"{tmp_path}/s")
        assert leftovers.end("another run") == 2
        assert process.wait() == node.process.wait() == -signal.SIGKILL
    node.kill()


def test_warm_process_is_started_again_when_it_was_killed():
    command = [sys.executable, "-c", "import os; print(os.getppid())"]
    for _ in range(2):
        first = int(subprocess.check_output(command))
        os.kill(first, signal.SIGKILL)
    assert int(subprocess.check_output(command)) not in (first, os.getpid())
