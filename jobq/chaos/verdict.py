"""Checks the lines of a ledger and the server's final state for broken guarantees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import NamedTuple

from jobq.chaos.ledger import FOREVER, History, InjectedFault, Line, Run, read_history
from jobq.chaos.limit_check import over_rate, over_slots
from jobq.queue.audit import Audited


class FinalState(NamedTuple):
    """The server's state after the workers have emptied the queue.

    Attributes:
        tracebacks: The logs that contain a traceback.
        exited: The workers that exited without a request to do so.
    """

    waiting: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()
    leaked: tuple[str, ...] = ()
    fsck: tuple[str, ...] = ()
    tracebacks: tuple[str, ...] = ()
    exited: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """The result of a round: counts, times in seconds, and the mids or keys for which each guarantee was broken.

    Attributes:
        refused: Number of attempts whose end was reported too late.
        recoveries: How many messages ran again after an interrupted run. The recovery_… fields are the seconds until
            the new run.
        overrun: The longest time for which a run continued after its lease had expired.
        rate: Messages finished per second.
        share: The rate divided by the baseline's rate, or by the rate before the fault.
        late: Longest delay until this machine woke a sleeping thread.
        audited: The result of the audit of events.
    """

    attempts: int
    acknowledged: int
    failed: int
    recovered: int
    runs: int
    duplicates: int
    hit: int
    faults: int
    refused: int
    dead: int
    recoveries: int
    recovery_p50: float | None
    recovery_p99: float | None
    recovery_max: float | None
    overrun: float
    rate: float
    late: float
    broken: dict[str, list[str]]
    share: float | None = None
    audited: Audited | None = None

    @property
    def holds(self) -> bool:
        return not any(self.broken.values())


def verdict_of(lines: Iterable[Line], final: FinalState) -> Verdict:
    """Check all guarantees for the ledger of one round."""
    history = read_history(lines)
    hits = {run: faults for run in history.runs if (faults := _hits(history, run))}
    recovery = sorted(_recoveries(history, hits))
    return Verdict(
        attempts=len(history.outcomes),
        acknowledged=len(_acknowledged(history)),
        failed=sum(outcome == "fail" for outcome in history.outcomes.values()),
        recovered=sum(history.outcomes.get(mid) == "info" for mid in history.ended),
        runs=len(history.runs),
        duplicates=sum(count - 1 for count in history.ended.values()),
        hit=len(hits),
        faults=len(history.faults),
        refused=sum(ending.reply == "stale" for ending in history.endings),
        dead=len(final.dead),
        recoveries=len(recovery),
        recovery_p50=quantile(recovery, 0.5),
        recovery_p99=quantile(recovery, 0.99),
        recovery_max=quantile(recovery, 1),
        overrun=max((run.overrun for run in history.runs), default=0.0),
        rate=_rate(history),
        late=history.late,
        broken={name: sorted(ids) for name, ids in _broken(history, final, hits)},
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the quantile at `share` of sorted values, such as 0.5 for the median; None without values."""
    return values[max(0, ceil(share * len(values)) - 1)] if values else None


def _rate(history: History) -> float:
    good = [run for run in history.runs if run.ended]
    if not good:
        return 0.0
    began = min(run.start for run in good)
    return len(history.ended) / max(0.001, max(run.last for run in good) - began)


def _broken(
    history: History, final: FinalState, hits: dict[Run, list[InjectedFault]]
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the name of every guarantee, with the mids or keys for which it was broken."""
    acknowledged, ran = _acknowledged(history), set(history.ended)
    yield "lost", acknowledged - ran - final.waiting - final.dead - set(history.cancelled)
    yield "unfinished", final.waiting
    yield "unexpected", (ran | set(history.started)) - set(history.outcomes)
    yield "unexplained", _unexplained(history, hits)
    yield "concurrent", _concurrent(history)
    yield "over_limit", _over_limit(history)
    yield "out_of_order", _out_of_order(history)
    yield "stale_accepted", _stale_accepted(history)
    yield "uncancelled", _uncancelled(history)
    yield "misreported", _misreported(history, final)
    yield "wrongly_dead", final.dead - set(history.poison)
    yield "undead", _undead(history, final)
    yield "orphans", map(str, history.orphans)
    yield "over_rate", over_rate(history.grants)
    yield "over_slots", over_slots(history.runs)
    yield "ticks", history.ticks
    yield "leaked", final.leaked
    yield "fsck", final.fsck
    yield "tracebacks", final.tracebacks
    yield "exited", final.exited


def _acknowledged(history: History) -> set[str]:
    return {mid for mid, outcome in history.outcomes.items() if outcome == "ok"}


def _hits(history: History, run: Run) -> list[InjectedFault]:
    faults = [*history.faults, *history.stalls]
    # A run that a crash interrupted is expected to be repeated. The end of a finished run may be unrecorded.
    faults += history.crashes if run.ended else []
    return [fault for fault in faults if history.hit(fault, run)]


def _unexplained(history: History, hits: dict[Run, list[InjectedFault]]) -> Iterator[str]:
    """Yield the mid of each message that a worker ran again after an undisturbed run or an accepted outcome."""
    for mid, count in history.ended.items():
        ended = [run for run in history.started[mid] if run.ended] if count > 1 else []
        for run, following in pairwise(ended):
            accepted_at = history.accepted.get((mid, run.fence), following.start)
            if run not in hits or accepted_at < following.start:
                yield mid
                break


def _recoveries(history: History, hits: dict[Run, list[InjectedFault]]) -> Iterator[float]:
    """For each run interrupted by a fault, yield the seconds until the message ran again."""
    for run, faults in hits.items():
        later = [rerun.start for rerun in history.started[run.mid] if rerun.start > run.start]
        if not run.ended and later:
            injected_at = max((f.at for f in faults if f.at >= run.start), default=run.last)
            yield max(0.0, min(later) - injected_at)


def _undead(history: History, final: FinalState) -> Iterator[str]:
    """Yield poison messages that weren't dead-lettered, or that ran too often or too rarely."""
    for mid, (limit, timed) in history.poison.items():
        accepted = history.outcomes.get(mid) == "ok" or mid in history.started
        most = len(history.started[mid])
        # Each run that isn't recorded was handed out.
        least = len(history.handed[mid]) if timed else most
        if accepted and (mid not in final.dead or most > limit or least < limit):
            yield mid


def _concurrent(history: History) -> Iterator[str]:
    """Yield mids with two runs that held a lease at the same time."""
    for mid, runs in history.started.items():
        spans = [(run, span) for run in runs for span in run.leased()]
        if any(
            first is not other and a[0] < b[1] and b[0] < a[1]
            for first, a in spans
            for other, b in spans
        ):
            yield mid


def _over_limit(history: History) -> Iterator[str]:
    steps: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    for mid, use in history.keys.items():
        for run in history.started.get(mid, ()):
            for began, ended in _held(history, run):
                # At one moment, an end comes before a start.
                steps[use.key, use.most] += [(began, 1), (ended, -1)]
    for (key, most), changes in steps.items():
        if max(accumulate(change for _, change in sorted(changes))) > most:
            yield key


def _held(history: History, run: Run) -> Iterator[tuple[float, float]]:
    """Yield the time spans during which the run had a valid lease, at most until a fault killed the run."""
    yield from run.leased()
    at, left = run.points[-1]
    killed = [fault.at for fault in history.faults if run.pid in fault.pids and fault.at > at]
    if not run.ended and killed and left > 0:
        yield at, min(at + left, *killed)


def _out_of_order(history: History) -> Iterator[str]:
    """Yield ordered keys whose messages didn't run in the order in which they were enqueued."""
    numbers = {mid: number for number, mid in enumerate(history.keys)}
    latest: dict[str, int] = {}
    for run in sorted(history.runs, key=lambda run: run.fence):
        use = history.keys.get(run.mid)
        if use is not None and use.ordered:
            if numbers[run.mid] < latest.get(use.key, 0):
                yield use.key
            latest[use.key] = max(latest.get(use.key, 0), numbers[run.mid])


def _stale_accepted(history: History) -> Iterator[str]:
    """Yield mids for which the server accepted an outdated outcome.

    A newer attempt had already started, or the server had already accepted the outcome of another attempt.
    """
    done: dict[str, set[str]] = defaultdict(set)
    for ending in history.endings:
        if ending.reply != "ok":
            continue
        if ending.outcome == "done":
            done[ending.mid].add(ending.token)
        fence = history.fences.get((ending.mid, ending.token))
        newer = history.handed[ending.mid]
        if fence is not None and any(f > fence and at < ending.began for f, at in newer):
            yield ending.mid
    yield from (mid for mid, tokens in done.items() if len(tokens) > 1)


def _uncancelled(history: History) -> Iterator[str]:
    """Yield mids of messages whose outcome the server accepted after it had confirmed their cancellation."""
    for ending in history.endings:
        if ending.reply == "ok" and ending.began > history.cancelled.get(ending.mid, FOREVER):
            yield ending.mid


def _misreported(history: History, final: FinalState) -> Iterator[str]:
    """Yield the mids of calls whose reply doesn't match their effect."""
    present = set(history.started) | final.waiting | final.dead
    for mid, outcome in history.outcomes.items():
        if outcome == "fail" and mid in present:
            yield mid
    # Every mid is enqueued once, so no other call can have added it.
    yield from history.taken_for_other
    for ending in history.endings:
        if ending.mid in history.cancelled:
            continue
        if ending.reply == "stale" and not _other_report(history, ending.mid, ending.token):
            yield ending.mid


def _other_report(history: History, mid: str, token: str) -> bool:
    """Return whether another attempt, or another report of this attempt, may have ended the message."""
    fence = history.fences.get((mid, token), -1)
    if any(other != fence for other, _ in history.handed[mid]):
        return True
    of_mid = [ending for ending in history.endings if ending.mid == mid]
    return any(ending.token != token or ending.reply in ("ok", "dead", "info") for ending in of_mid)


class Bound(NamedTuple):
    """A limit for `figure`, a field of Verdict: the maximum, or the minimum if `least` is true."""

    figure: str
    limit: float
    least: bool = False

    def kept(self, value: float) -> bool:
        return value >= self.limit if self.least else value <= self.limit

    @property
    def text(self) -> str:
        return f"{self.figure.replace('_', ' ')} {'>=' if self.least else '<='} {self.limit:.2f}"


def missed(verdict: Verdict, bounds: Sequence[Bound]) -> Iterator[str]:
    """Yield the bounds that the measurements exceed. A bound without a measurement is ignored."""
    for bound in bounds:
        value = getattr(verdict, bound.figure)
        if value is not None and not bound.kept(value):
            yield f"{bound.text}, measured {value:.2f}"
