"""Finish an erasure in many small steps, to be killed: LAKE local|spark. A line before each step."""

import sys
from contextlib import AbstractContextManager, nullcontext

from jobq.pipeline import session
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import erase
from jobq.pipeline.lake.lake import Lake

lake, when = Lake.open(sys.argv[1]), sys.argv[2]
engine = Engine(when, session=lambda: session(master="local[2]", memory="512m", fast=True))  # type: ignore[arg-type]
if when == "spark":
    engine.spark()
erase.UNIT_BYTES, erase.UNITS = 1, 2


def step() -> AbstractContextManager[None]:
    print("step", flush=True)
    return nullcontext()


erase.finish(lake, engine, alone=step)
