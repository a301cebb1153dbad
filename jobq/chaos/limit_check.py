"""The limits of a round's jobs, and checks that the jobs kept to their rate limits and concurrency limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from jobq.chaos.ledger import STEM, Run

#: Names of the limits of jobs.
RATE_NAME, SLOTS_NAME = "chaos-rate", "chaos-slots"
MAX_COUNT, SPAN_MS, SLOTS = 40, 1_000, 3
RATE = f"{MAX_COUNT}/s"


def over_rate(grants: Sequence[int]) -> Iterator[str]:
    """Yield the times (epoch ms) of granted starts that exceeded the rate limit."""
    ordered = sorted(grants)
    for first, later in zip(ordered, ordered[MAX_COUNT:], strict=False):
        if later - first <= SPAN_MS:
            yield str(later)


def over_slots(runs: Iterable[Run]) -> Iterator[str]:
    """Yield message ids of runs above the concurrency limit."""
    ended = [run for run in runs if run.ended and run.mid.startswith(STEM)]
    changes = sorted(
        [(run.start, 1, run.mid) for run in ended] + [(run.last, -1, run.mid) for run in ended]
    )
    running = 0
    for _, change, mid in changes:
        running += change
        if running > SLOTS:
            yield mid
