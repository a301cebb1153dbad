"""Rounds on a server of their own, Valkey or Redis by turns."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobq.chaos.faults import FAULTS
from jobq.chaos.ledger import Ledger
from jobq.chaos.round import RoundPlan, run_round
from jobq.chaos.round_setup import Fault
from jobq.chaos.servers import OwnServer
from jobq.chaos.verdict import Verdict
from tests.conftest import binary, kinds

SEED = 20261121
#: A fault also affects records written shortly after it.
GRACE_S = 0.5
#: Of each round; `make chaos` asks for more.
JOBS = int(os.environ.get("JOBQ_CHAOS_JOBS", "300"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def own(folder: Path, request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """A server that may be killed: of each fault another kind, as far as both are here."""
    there = kinds(request.config)
    asked = getattr(request, "param", 0)
    server = OwnServer(folder, binary(there[asked % len(there)]) or "")
    yield server
    server.close()


@pytest.fixture
def played(own: OwnServer, folder: Path) -> Callable[..., Verdict]:
    """played("child-kill"): the verdict on a short round."""

    def one(fault: str | Fault, jobs: int = JOBS) -> Verdict:
        known = FAULTS[fault] if isinstance(fault, str) else fault
        return run_round(own, RoundPlan(known, jobs, SEED), folder)

    return one


def broken(verdict: Verdict, *but: str) -> dict[str, list[str]]:
    """Return the broken promises, except promises that the fault suspends."""
    return {name: found for name, found in verdict.broken.items() if found and name not in but}


def handed_over(folder: Path) -> set[str]:
    """Mids that were handed out before, or just as, some fault was over, and again after its beginning."""
    lines = list(Ledger(str(folder / "ledger")).lines())
    faults = [(line["at"], line["until"] + GRACE_S) for line in lines if line["word"] == "fault"]
    times: dict[str, list[float]] = {}
    for line in lines:
        if line["word"] == "handed":
            for mid, *_ in line["messages"]:
                times.setdefault(mid, []).append(line["at"])
    return {
        mid
        for mid, ats in times.items()
        if any(min(ats) <= until and max(ats) >= at for at, until in faults) and len(ats) > 1
    }
