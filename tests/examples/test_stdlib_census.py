"""`examples/stdlib_census`: its parts, and the whole as `jobq demo` runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "stdlib_census"


@pytest.fixture
def parts(monkeypatch):
    """The example's modules, as its script sees them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import counting
    import ledger
    import sources
    import summary

    yield counting, ledger, sources, summary
    for name in ("counting", "ledger", "pool", "sources", "summary"):
        sys.modules.pop(name, None)


def test_counts_are_those_of_the_file(parts, tmp_path):
    counting, *_ = parts
    file = tmp_path / "a.py"
    file.write_text(
        "import os, os.path\nfrom json import loads\nfrom . import x\n"
        "class A:\n    def f(self): ...\n    async def g(self): ...\n"
    )
    found = counting.count(str(file))
    assert (found.files, found.functions, found.classes, found.lines) == (1, 2, 1, 6)
    assert found.imports == Counter(os=2, json=1)


def test_every_broken_file_fails(parts, tmp_path):
    counting, _, sources, _ = parts
    for path in sources.write_broken(tmp_path):
        with pytest.raises((SyntaxError, ValueError)):
            counting.count(path)


def test_files_are_many_each_once_and_a_choice_is_spread(parts):
    *_, sources, _ = parts
    files = sources.installed()
    assert len(files) == len(set(files)) > 1_000
    assert any(path.endswith("/json/decoder.py") for path in files)
    few = sources.chosen(20)
    assert len(set(few)) == 20
    assert few[0] == files[0]


def test_files_leave_out_packages_of_another_python_when_this_one_is_virtual(
    parts, tmp_path, monkeypatch
):
    *_, sources, _ = parts
    base, own = tmp_path / "base", tmp_path / "venv"
    files = ("base/os.py", "base/json/decoder.py", "venv/site-packages/mine.py")
    others = ("base/site-packages/theirs.py", "base/dist-packages/theirs.py")
    for name in (*files, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    packages = str(own / "site-packages")
    monkeypatch.setattr(
        sources.sysconfig, "get_paths",
        lambda: {"stdlib": str(base), "platstdlib": str(own), "purelib": packages, "platlib": packages},
    )  # fmt: skip
    assert sources.installed() == sorted(str((tmp_path / name).resolve()) for name in files)


def test_failed_attempt_holds_nothing_any_more(parts, tmp_path):
    _, ledger, sources, _ = parts
    broken = sources.write_broken(tmp_path / "broken")[0]
    code = "import sys; from census_jobs import census; census(*sys.argv[1:])"
    attempt = subprocess.run(
        [sys.executable, "-c", code, broken, str(tmp_path)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(FOLDER.parents[1])])},
    )  # fmt: skip
    assert "SyntaxError" in attempt.stderr
    [pid] = ledger.pids(tmp_path)
    assert [line.word for line in ledger.read(tmp_path)] == ["start", "fail"]
    assert ledger.unfinished(tmp_path, pid) is None


def test_stopped_process_runs_no_further_when_stop_returns(parts, tmp_path):
    import pool

    written = tmp_path / "written"
    code = "import sys; file = open(sys.argv[1], 'ab', 0)\nwhile True: file.write(b'.')"
    busy = subprocess.Popen([sys.executable, "-c", code, str(written)])
    try:
        while not (written.exists() and written.stat().st_size):
            assert busy.poll() is None
        pool.stop(busy.pid)
        size = written.stat().st_size
        assert pool.state(busy.pid) == "T"
        assert written.stat().st_size == size
    finally:
        busy.kill()
        busy.wait()
    assert pool.state(busy.pid) == ""
    with pytest.raises(ProcessLookupError):
        pool.stop(busy.pid)


def test_torn_line_of_a_killed_process_is_left_out(parts, tmp_path):
    counting, ledger, *_ = parts
    ledger.write(str(tmp_path), "start", "a.py")
    ledger.write(str(tmp_path), "end", "a.py", counting.Counts(files=1, imports=Counter(os=1)))
    ledger.write(str(tmp_path), "start", "b.py")
    [pid] = ledger.pids(tmp_path)
    with (tmp_path / f"{pid}.jsonl").open("a") as file:
        file.write('{"word": "end", "pa')
    lines = list(ledger.read(tmp_path))
    assert [(line.word, line.path) for line in lines] == [
        ("start", "a.py"), ("end", "a.py"), ("start", "b.py"),
    ]  # fmt: skip
    assert lines[1].counts.imports == Counter(os=1)
    assert ledger.unfinished(tmp_path, pid) == "b.py"


def test_second_run_of_a_file_is_a_duplicate_that_counts_once(parts):
    counting, ledger, _, summary = parts
    counts = counting.Counts(files=1, lines=5)
    lines = [ledger.Line("end", "a.py", 1, at, counts) for at in (1.0, 3.0)]
    census = summary.of_ledger(lines, {})
    assert (census.counts.files, census.counts.lines, census.duplicates) == (1, 5, 1)
    assert census.seconds == 2.0


def test_differences_name_the_figure(parts):
    counting, _, _, summary = parts
    here = summary.Census(counting.Counts(files=2), {"bad.py": "x"})
    there = summary.Census(counting.Counts(files=3), {})
    assert [line.partition(":")[0] for line in summary.differences(here, there)] == [
        "files", "files that failed in only one of them",
    ]  # fmt: skip
    assert list(summary.differences(here, here)) == []


def test_demo_counts_kills_agrees_with_the_plain_loop_and_shows_its_run(run, redis):
    ran = run("-m", "jobq", "demo", "--files", "400", "--web", "yes")
    said = ""
    while "dashboard at" not in said:
        line = ran.stdout.readline()
        assert line, said
        said += line
    assert re.search(r"ran again after +\d+ ms", said)
    assert re.search(r"dead +\d", said)
    assert "every figure equals that of a plain loop" in said
    assert said.count("SyntaxError") >= 2
    figures = dict(re.findall(r"^  (jobs done|dead|duplicates) +([\d,]+)$", said, re.MULTILINE))
    assert int(figures["jobs done"]) + int(figures["dead"]) == 403, json.dumps(figures)
    link = re.findall(r"dashboard at (http://127[.]0[.]0[.]1:\d+/login[?]token=\S+)", said)[0]
    with urlopen(link, timeout=60) as reply:
        assert "Log in to demo" in reply.read().decode()
    ran.send_signal(signal.SIGINT)
    rest, _ = ran.communicate(timeout=300)
    assert ran.returncode == 0, rest
    assert redis.keys("census-*") == []


def test_demo_leaves_no_process_key_or_file_when_it_is_told_to_end(run, redis, until, tmp_path):
    demo = run("-m", "jobq", "demo", "--files", "3000", env={"TMPDIR": str(tmp_path)})
    until(lambda: list(tmp_path.glob("jobq-census-*/*.jsonl")))
    children = [int(file.stem) for file in tmp_path.glob("jobq-census-*/*.jsonl")]
    demo.terminate()
    said, _ = demo.communicate(timeout=300)
    assert demo.returncode == 128 + signal.SIGTERM, said
    assert redis.keys("census-*") == []
    assert list(tmp_path.glob("jobq-census-*")) == []
    until(lambda: not any(map(psutil.pid_exists, children)))


def test_demo_shows_and_keeps_the_log_when_its_worker_leaves(run, redis, tmp_path):
    env = {"TMPDIR": str(tmp_path), "JOBQ_WORKER_LEASE": "nonsense"}
    said, _ = (demo := run("-m", "jobq", "demo", "--files", "10", env=env)).communicate(timeout=300)
    assert demo.returncode == 1
    assert re.search(r"the worker left with exit code [1-9]", said)
    [log] = tmp_path.glob("jobq-census-*/worker.log")
    assert str(log) in said
    assert log.read_text().strip() in said
    assert redis.keys("census-*") == []


def test_demo_is_silent_about_the_password_of_its_server(run, redis, server, tmp_path):
    redis.execute_command("ACL", "SETUSER", "census", "on", ">s3cr3t-word", "allkeys", "+@all")
    env = {"TMPDIR": str(tmp_path), "JOBQ_WORKER_LEASE": "nonsense",
           "JOBQ_URL": server.url.replace("unix://", "unix://census:s3cr3t-word@")}  # fmt: skip
    try:
        said, _ = run("-m", "jobq", "demo", "--files", "10", env=env).communicate(timeout=300)
    finally:
        redis.execute_command("ACL", "DELUSER", "census")
    assert "files, one job each, on unix://" in said
    assert "s3cr3t-word" not in said
