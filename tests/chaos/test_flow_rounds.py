"""Flows on a Cluster while workers, supervisors and producers are killed: each step is accepted exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.chaos.faults import FAULTS
from jobq.chaos.flow_round import FlowLoad, grown, load_of, missing, not_once, run_flow_round
from jobq.chaos.round import RoundPlan
from jobq.chaos.servers import OwnCluster
from tests.conftest import binary, kinds

from .conftest import JOBS, SEED, broken


@pytest.fixture
def cluster(folder: Path, request: pytest.FixtureRequest) -> Iterator[OwnCluster]:
    deployment = OwnCluster(folder, binary(kinds(request.config)[0]) or "")
    yield deployment
    deployment.close()


def test_each_step_of_flows_is_accepted_once_while_processes_are_killed(cluster, folder):
    verdict = run_flow_round(cluster, RoundPlan(FAULTS["flows"], JOBS, SEED), folder)
    assert broken(verdict) == {}
    assert verdict.attempts == 4 * load_of(JOBS).flows + 1
    assert verdict.faults
    assert verdict.duplicates <= verdict.hit


def test_steps_that_were_accepted_twice_or_never_are_found():
    def start(mid: str, generation: str) -> dict[str, Any]:
        return {"word": "start", "mid": mid, "generation": generation}

    load = FlowLoad(flows=1, members=3)
    mids = list(load.mids)
    lines = [start(mid, "g1") for mid in mids for _ in range(2)]
    assert list(not_once(lines, load)) == []
    assert list(not_once([*lines[2:], start(mids[1], "g2")], load)) == [
        f"{mids[0]}: 0 times",
        f"{mids[1]}: 2 times",
    ]


def test_members_that_never_ran_and_producers_that_grow_are_found():
    lines = [{"word": "member", "number": number} for number in (0, 2, 2)]
    assert list(missing(lines, FlowLoad(1, 4))) == ["1", "3"]
    peaks = [{"word": "producer", "pid": 7, "peak_kb": kb} for kb in (40_000, 60_000, 61_000)]
    assert list(grown(peaks)) == []
    assert len(list(grown([*peaks, {"word": "producer", "pid": 7, "peak_kb": 99_000}]))) == 1
