"""How many calls inside jobq one job takes. `python -m bench.frames` prints them."""

from __future__ import annotations

from bench.frames import one_job, traced

#: Frames, depth and modules of Job.enqueue; frames of dequeue, run and finish. They only get smaller.
ENQUEUE, RUN = (16, 6, 8), 29


def test_job_takes_few_calls():
    with one_job() as (enqueue, run):
        sent, ran = traced(enqueue), traced(run)
    assert sent.frames <= ENQUEUE[0], "\n".join(sent.lines())
    assert sent.depth <= ENQUEUE[1], "\n".join(sent.lines())
    assert len(sent.modules) <= ENQUEUE[2], sent.modules
    assert ran.frames <= RUN, "\n".join(ran.lines())
