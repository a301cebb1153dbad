"""The server is away for longer than a call may be repeated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobq.chaos.crew import children_of
from jobq.chaos.proxy import DOWN

if TYPE_CHECKING:
    from jobq.chaos.stage import Stage

#: The life of a call's record in such a round.
RECORD_S = 3.0
#: How long calls still arrive whose replies don't.
UNANSWERED_S = 0.5
#: For everybody to come back, before the next.
BACK_S = 1.0


def long_outage(stage: Stage) -> None:
    """First no replies, then nothing at all, for longer than records live; perhaps then what was on its way.

    For everybody, or for the producers and every other worker, while the others run and collect what arrived.
    """
    everybody = bool(stage.random.getrandbits(1))
    roads = [stage.road(), stage.side_road()] if everybody else [stage.road()]
    cut_off = [one for one in stage.crew.living if everybody or one not in stage.crew.aside]
    pids = [pid for worker in cut_off for pid in (worker.pid, *children_of(worker.pid))]
    with stage.fault("long-outage", pids, cuts=True):
        try:
            for road in roads:
                road.swallow([DOWN])
            time.sleep(UNANSWERED_S)
            for road in roads:
                road.swallow()
            time.sleep(RECORD_S * stage.random.uniform(1.2, 1.5))
        finally:
            late = bool(stage.random.getrandbits(1))
            for road in roads:
                if not late:
                    road.cut()
                road.deliver()
    time.sleep(BACK_S)
