"""A server whose disk is full: nothing is accepted that it can't keep, and nothing is half done."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.chaos.faults import FAULTS
from jobq.chaos.round import RoundPlan, run_round
from jobq.chaos.servers import OwnServer
from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.errors import ServerFullError
from jobq.observe.facts import Collector
from jobq.observe.why import why
from jobq.queue.queue import Queue
from tests.conftest import binary, kinds
from tests.tools import compiled

from .conftest import JOBS, SEED, broken


@pytest.fixture
def queue(own):
    """Return the client of a producer that doesn't wait."""
    client = connect(settings=ServerSettings(url=own.url, patience_s=5))
    yield Queue("low", client)
    client.close()


def test_full_disk_refuses_an_enqueue_cleanly(own, queue):
    queue.enqueue(b"v", mid="before")
    own.fill_disk()
    # The server finds out by the write that it can't make; that write is in its memory, and reaches the disk later.
    queue.enqueue(b"v", mid="tried")
    with pytest.raises(ServerFullError, match="nothing was changed: MISCONF"):
        queue.enqueue(b"v", mid="refused")
    with pytest.raises(ServerFullError, match="nothing was changed: MISCONF"):
        queue.enqueue_many([b"v"] * 3)
    assert queue.admin.counts().messages == 2
    assert why(Collector(queue).collect("before"))[0].code == "server_read_only"
    own.free_disk()
    queue.client.command("CONFIG", "SET", "appendfsync", "always")
    assert queue.enqueue(b"v", mid="refused").action == "added"
    own.restart()
    assert [message.mid for message in queue.dequeue(5).messages] == ["before", "tried", "refused"]


@pytest.mark.needs("gcc")
def test_killed_server_loses_nothing_on_a_disk_that_syncs_slowly(folder, request):
    slow = {"LD_PRELOAD": compiled(Path(__file__).with_name("slow_disk.c"), folder)}
    own = OwnServer(folder, binary(kinds(request.config)[-1]) or "", env=slow)
    try:
        verdict = run_round(own, RoundPlan(FAULTS["server-restart"], JOBS, SEED), folder)
    finally:
        own.close()
    assert broken(verdict) == {}
    assert verdict.faults


def test_round_on_a_full_disk_met_refused_writes(own, folder):
    assert run_round(own, RoundPlan(FAULTS["disk-full"], 300, SEED), folder).holds
    assert "Error writing to the AOF file" in (folder / "server.log").read_text()
