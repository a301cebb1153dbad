"""`jobq chaos` says which bound was missed, and fails; what is compared with a clean round is played after it."""

from __future__ import annotations

import json
import signal
import tempfile

import pytest

from jobq.chaos.faults import FAULTS
from jobq.chaos.verdict import FinalState, Verdict, verdict_of
from jobq.cli import chaos, main

HELD = verdict_of([], FinalState())


@pytest.fixture
def rehearsed(monkeypatch, folder):
    """rehearsed(**figures by fault): `jobq chaos` in which rounds come to such verdicts; which were played."""
    played: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = signal.getsignal(signal.SIGTERM)

    def begin(**verdicts: Verdict) -> list[str]:
        def run_round(place, plan, folder):
            played.append(plan.fault.name)
            return verdicts[plan.fault.name.replace("-", "_")]

        monkeypatch.setattr(chaos, "run_round", run_round)
        return played

    yield begin
    signal.signal(signal.SIGTERM, before)


def test_late_recovery_is_told_and_fails(rehearsed, capsys):
    rehearsed(
        child_kill=HELD._replace(
            recoveries=3,
            recovery_p50=0.2,
            recovery_p99=1.25,
            recovery_max=1.25,
            late=0.4,
            overrun=0.25,
        )
    )
    assert main(["chaos", "--fault", "child-kill"]) == 1
    said = capsys.readouterr().out
    assert said.split()[:2] == ["child-kill", "BROKEN"]
    assert "missed: recovery p99 <= 1.00, measured 1.25" in said
    assert "3 ran again after p50 0.20 s, p99 1.25 s, max 1.25 s" in said
    assert "overrun 0.25 s, machine late 0.40 s" in said


def test_early_one_holds(rehearsed, capsys):
    rehearsed(
        child_kill=HELD._replace(recoveries=1, recovery_p50=0.2, recovery_p99=0.2, recovery_max=0.2)
    )
    assert main(["chaos", "--fault", "child-kill", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["bounds"] == ["recovery p99 <= 1.00"]
    assert (record["missed"], record["holds"], record["recovery_p99"]) == ([], True, 0.2)


@pytest.mark.parametrize(("rate", "code"), [(69.0, 1), (70.0, 0)])
def test_rate_is_compared_with_that_of_the_clean_round_before(rehearsed, capsys, rate, code):
    played = rehearsed(crowd=HELD._replace(rate=100.0), poisoned_crowd=HELD._replace(rate=rate))
    assert main(["chaos", "--fault", "poisoned-crowd"]) == code
    assert played == ["crowd", "poisoned-crowd"]
    said = capsys.readouterr().out
    assert f"{rate:.0f}% of clean" in said
    assert ("missed: share >= 0.70" in said) == bool(code)


def test_clean_round_is_played_once(rehearsed):
    verdict = HELD._replace(rate=100.0)
    played = rehearsed(crowd=verdict, poisoned_crowd=verdict)
    names = ["--fault", "crowd", "--fault", "poisoned-crowd"]
    assert main(["chaos", *names]) == 0
    assert played == ["crowd", "poisoned-crowd"]


def test_broken_promise_fails_whatever_was_measured(rehearsed):
    rehearsed(none=HELD._replace(broken={"lost": ["m"]}))
    assert FAULTS["none"].bounds == ()
    assert main(["chaos", "--fault", "none"]) == 1
