"""Upkeep without end beside an ingest, to be killed: LAKE. A line per round tells that it is at work."""

import sys
from contextlib import suppress

from jobq.pipeline.lake import upkeep
from jobq.pipeline.lake.commit import CommitConflictError
from jobq.pipeline.lake.lake import Lake

lake = Lake.open(sys.argv[1])
while True:
    # Without the lake's lock, as in a bucket: the ingest commits at the same time.
    for step in (
        lambda: upkeep.compact(lake, ["events"]),
        lambda: upkeep.expire(lake, 2 * 86_400),
    ):
        with suppress(CommitConflictError):
            step()
    print("round", flush=True)
