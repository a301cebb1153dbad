"""The report of a run of the benchmarks: its run, its reached targets, and other load on the machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from bench.cases import CASES
from bench.page import END, begin
from bench.peers import PEERS
from bench.report import COMMAND, WAIT_COMMAND, last_run, report
from bench.targets import (
    NAPPING,
    NOOP,
    OF_WORKER,
    PER_CORE,
    SERVER_COST,
    TCP,
    installed,
    judged,
)

ROOT = Path(__file__).resolve().parents[2]


def line(run: str, peer: str, figure: str, median: float) -> dict[str, Any]:
    return {
        "run": run, "case": "drain2", "peer": peer, "name": peer, "figure": figure, "unit": "jobs/s",
        "median": median, "min": median - 1, "max": median + 1, "runs": 5, "others": 0.1, "busy": True,
    }  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    head = {"head": {"command": "python -m bench"}, "runs": 5}
    lines = [
        {"run": "old", **head}, line("old", "own", NOOP, 1), line("old", "rq", NOOP, 1),
        {"run": "new", **head}, line("new", "own", NOOP, 2), line("new", "own", NOOP, 3), {"run": "new", "seconds": 60},
        {"run": "new", "failed": "cpu", "peer": "rq", "times": 1, "why": "it\nbroke"},
    ]  # fmt: skip
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def reported(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """reported(page, lines): the text of the page after these lines were added to the results and reported in it."""
    monkeypatch.setattr("bench.report.RESULTS", results)

    def fill(page: str, lines: Iterable[dict[str, Any]] = ()) -> str:
        with results.open("a") as file:
            file.writelines("\n" + json.dumps(one) for one in lines)
        path = tmp_path / "page.md"
        path.write_text(page)
        report(path)
        return path.read_text()

    return fill


def test_last_run_is_told_alone_and_a_repeated_figure_by_its_later_value(results):
    run = last_run(results)
    assert {key: found["median"] for key, found in run.figures.items()} == {("own", NOOP): 3}
    assert run.seconds == 60


def test_report_replaces_what_is_between_the_marks_and_nothing_else(reported):
    text = reported(f"above\n{begin(COMMAND)}\nold\n{END}\nbelow\n")
    assert text.startswith(f"above\n{begin(COMMAND)}\n")
    assert text.endswith(f"{END}\nbelow\n")
    assert "old" not in text
    assert "| own | 3 (2–4) † |" in text
    assert "Not run: rq, cpu, 1 times: `broke`" in text


def test_drain_has_a_row_as_installed_and_a_quiet_one(reported):
    figures = (NOOP, installed(NOOP), f"{installed(NOOP)}, CPU of the worker per job")
    lines = [line("new", peer, figure, 7) for peer in ("own", "dramatiq") for figure in figures]
    text = reported(f"{begin(COMMAND)}\n{END}\n", lines)
    assert "| own, as installed | 7 (6–8) † |  | 7 † |" in text
    assert "| own, quiet | 7 (6–8) † |  |  |" in text
    assert "| dramatiq, quiet (the same) |" in text
    assert "| jobq | its defaults for logging | `--log-level warning` |" in text


def test_part_that_was_not_measured_stays_as_it_is(reported):
    lines = [
        {"run": "newest", "head": {"command": "python -m bench coroutines"}, "runs": 1},
        line("newest", "own", NAPPING, 9_000) | {"case": "coroutines"},
        line("newest", "own", f"{NAPPING}, uvloop", 9_500) | {"case": "coroutines"},
        line("newest", "bare", NAPPING, 10_000) | {"case": "coroutines"},
        line("newest", "own", OF_WORKER.format(NAPPING), 66) | {"case": "coroutines"},
    ]
    parts = f"{begin(COMMAND)}\nkept\n{END}\n{begin(WAIT_COMMAND)}\nold\n{END}\n"
    text = reported(parts, lines)
    assert "kept" in text
    assert "old" not in text
    assert "| own | 9,000 (8,999–9,001) † | 66 † |  |" in text
    assert "| own, uvloop | 9,500 (9,499–9,501) † |  |  |" in text
    assert "| ≥ 96 % of two bare event loops | 90 % | **missed** by 6% |" in text
    assert "| ≤ 60 µs | 66 µs | **missed** by 10% |" in text


def test_figures_over_tcp_have_rows_of_their_own_beside_those_of_a_unix_socket(reported):
    lines = [
        line("new", "own", figure + way, median)
        for figure in (NOOP, installed(NOOP))
        for way, median in (("", 7), (TCP, 5))
    ]
    text = reported(f"{begin(COMMAND)}\n{END}\n", lines)
    assert "| own, as installed | 7 (6–8) † |" in text
    assert "| own, as installed, TCP | 5 (4–6) † |" in text
    assert "| own, quiet, TCP | 5 (4–6) † |" in text


def test_cost_of_a_job_has_a_table_when_it_was_measured(reported):
    lines = [{"run": "newest", "head": {"command": "python -m bench costs"}, "runs": 1}]
    for length, us in (("1 ms", 11), ("20 ms", 24), ("1 s", 54)):
        lines += [
            line("newest", "own", SERVER_COST.format(length), us) | {"case": "costs"},
            line("newest", "own", PER_CORE.format(length), 1e6 / us) | {"case": "costs"},
        ]
    text = reported(f"{begin(WAIT_COMMAND)}\n{END}\n", lines)
    assert "### What a job costs the server" in text
    assert "| own | 11 † | 24 † | 54 † | 90,909 † | 41,667 † | 18,519 † |" in text


def test_report_refuses_a_page_without_marks(reported):
    with pytest.raises(SystemExit, match="between"):
        reported("nothing to replace")


@pytest.mark.parametrize(
    ("own", "verdict"), [(30_000, "reached"), (15_000, "**missed** by 50%"), (None, "not measured")]
)
def test_target_is_judged_against_the_best_of_several_peers(own, verdict):
    known = {("own", NOOP): own, ("dramatiq", NOOP): 10_000, ("rq", NOOP): 500}
    rows = judged(lambda peer, figure: known.get((peer, figure)), {})
    asked = {target: said for _, target, _, said in rows}
    assert asked["≥ 3 × the best Python peer"] == verdict


def test_script_beyond_a_millisecond_is_named():
    *_, (_, _, figure, verdict) = judged(lambda *_: None, {"quick": 0.9, "slow": 2.0})
    assert figure == "2.00 ms (slow)"
    assert verdict == "**missed** by slow"


def test_every_case_names_peers_that_exist_and_every_peer_has_a_module():
    assert {peer for case in CASES.values() for peer in case.peers} == set(PEERS)
    for name in PEERS:
        assert list((ROOT / "bench" / "peers").glob(f"{name}.*")), name
