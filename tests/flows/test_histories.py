"""Random histories of flows with the real scripts. JOBQ_FLOWS=soak: 2,000 of them, and the rare faults are sown too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.flows import sending
from tests.flows.history import History
from tests.flows.lockstep import take_turns
from tests.flows.mutants import FAULTS, Fault, sown

SOAK = os.environ.get("JOBQ_FLOWS") == "soak"
NHISTORIES = 2_000 if SOAK else 40
#: Faults that a few histories notice; all of them in a soak.
SOWN = [fault for fault in FAULTS if SOAK or not fault.rare]
#: Two thousand histories take longer than any other test may.
pytestmark = [pytest.mark.one_server, *([pytest.mark.timeout(7_200)] if SOAK else [])]


@pytest.fixture
def lives(server: Any, redis: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    # So that maps of three members are cancelled and revived in several calls.
    monkeypatch.setattr(sending, "PAGES_PER_CALL", 1)
    monkeypatch.setattr(sending, "REVIVED_TOGETHER", 1)
    client = connect(settings=ServerSettings(url=server.url, patience_s=10))
    take_turns(client)

    def live(seed: int, **more: Any) -> History:
        redis.flushall()
        history = History(client, redis, seed, **more)
        history.run()
        return history

    yield live
    client.close()


def test_no_history_hangs_or_sends_a_step_twice(lives: Any):
    kills = 0
    for seed in range(NHISTORIES):
        try:
            kills += lives(seed).kills
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert kills > NHISTORIES


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_each_fault_changes_its_script(fault: Fault, tmp_path: Path):
    """All faults, including the faults that only a soak sows."""
    with sown(fault, tmp_path):
        pass


@pytest.mark.parametrize("fault", SOWN, ids=[fault.name for fault in SOWN])
def test_histories_notice_a_fault(fault: Fault, lives: Any, tmp_path: Any):
    with sown(fault, tmp_path):
        for seed in range(NHISTORIES):
            try:
                lives(seed)
            except Exception:
                return
    pytest.fail(f"{fault.name}: {NHISTORIES} histories noticed nothing")
