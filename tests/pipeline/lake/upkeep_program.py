"""Endless upkeep during an ingest, to be killed: LAKE. A line per round tells that it is at work."""

import sys
from contextlib import suppress

from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import erase, upkeep
from jobq.pipeline.lake.commit import CommitConflictError
from jobq.pipeline.lake.lake import Lake, RepeatedLock

lake = Lake.open(sys.argv[1])
engine = Engine("local")
alone = RepeatedLock(lake, wait_s=600, enough=lambda: False)
with alone():
    erase.begin(lake, [erase.Erasable("mid", "kept", f"m{n}") for n in range(1, 51)], "a test")
while True:
    # Without the lake's lock, as in a bucket: the ingest commits at the same time.
    for step in (
        lambda: upkeep.compact(lake, ["events"]),
        lambda: upkeep.expire(lake, 2 * 86_400),
        # It deletes unused files. So it must not run while others write.
        lambda: erase.finish(lake, engine, alone=alone),
    ):
        with suppress(CommitConflictError):
            step()
    print("round", flush=True)
