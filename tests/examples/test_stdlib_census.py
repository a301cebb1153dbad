"""`examples/stdlib_census`: its parts, and the whole as `jobq demo` runs it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

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
    for name in ("counting", "ledger", "sources", "summary"):
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
        "files", "files that failed in one only",
    ]  # fmt: skip
    assert list(summary.differences(here, here)) == []


def test_demo_counts_kills_and_agrees_with_the_plain_loop(run, redis):
    ran = run("-m", "jobq", "demo", "--files", "400")
    said, _ = ran.communicate(timeout=110)
    assert ran.returncode == 0, said
    assert re.search(r"ran again after +\d+ ms", said)
    assert re.search(r"dead +\d", said)
    assert "every figure equals that of a plain loop" in said
    assert said.count("SyntaxError") >= 2
    assert redis.keys("census-*") == []
    figures = dict(re.findall(r"^  (jobs done|dead|duplicates) +([\d,]+)$", said, re.MULTILINE))
    assert int(figures["jobs done"]) + int(figures["dead"]) == 403, json.dumps(figures)
