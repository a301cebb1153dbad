"""Every report computed from a frame of events with pandas and plain Python, not from the statements of jobq."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from jobq.pipeline.report.query import ReportQuery
from tests import tools
from tests.pipeline.report.first_waits import Rows, grouped
from tests.pipeline.report.samples import deviate, side

pd = tools.library("pandas")
ENDED = ("done", "retry", "dead", "crashed", "recovered")
#: Key of a row -> its other figures.
Answer = dict[tuple[Any, ...], tuple[Any, ...]]


def quantile(values: Iterable[float], share: float) -> Any:
    """The smallest value that so large a share of the values doesn't exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)] if ordered else None


def between(values: Sequence[float], share: float) -> float:
    """Interpolate on the line between two neighbours."""
    return float(pd.Series(values).quantile(share))


def _ran(rows: Rows) -> Rows:
    return [one for one in rows if one["run_us"] is not None]


def _total(rows: Rows, name: str) -> int:
    return sum(one[name] or 0 for one in rows)


def wait(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by queue and job."""
    first = [one for one in rows if one["first"] is not None]
    return {
        key: (
            len(some), *(quantile([one["first"] for one in some], q) for q in (0.5, 0.95, 0.99, 1)),
        )
        for key, some in grouped(first, "queue", "job").items()
    }  # fmt: skip


def run(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by queue and job."""
    return {
        key: (
            len(some), *(quantile([one["run_us"] for one in some], q) for q in (0.5, 0.95, 0.99, 1)),
            _total(some, "run_us"),
        )
        for key, some in grouped(_ran(rows), "queue", "job").items()
    }  # fmt: skip


def begins(query: ReportQuery) -> list[datetime]:
    """The beginnings of time buckets of whole hours, in the zone."""
    step = pd.Timedelta(seconds=query.bucket_s)
    local = pd.Timestamp(query.since).tz_convert(query.zone)
    wall = local.tz_localize(None).floor(step)
    found = []
    while (at := wall.tz_localize(query.zone)) < query.until:
        found.append(at.tz_convert("UTC").to_pydatetime())
        wall += step
    return [max(found[0], query.since), *found[1:]]


def _bucket(at: datetime, of: list[datetime]) -> datetime:
    return max(one for one in of if one <= at)


def throughput(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by bucket and queue."""
    starts = begins(query)
    ends = dict(zip(starts, [*starts[1:], query.until], strict=True))
    ended = [one for one in rows if one["kind"] in ENDED]
    counts = Counter((_bucket(one["finished_at"], starts), one["queue"], one["kind"]) for one in ended)  # fmt: skip
    found = {}
    for queue in {one["queue"] for one in ended}:
        for at in starts:
            done, dead = (counts[at, queue, kind] for kind in ("done", "dead"))
            failed = sum(counts[at, queue, kind] for kind in ("retry", "crashed", "recovered"))
            found[at, queue] = (done, failed, dead, done / (ends[at] - at).total_seconds())
    return found


def heatmap(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by weekday and hour of the zone."""
    minutes = pd.date_range(query.since, query.until, freq="min", inclusive="left")
    hours: Counter[Any] = Counter()
    for one in minutes.tz_convert(query.zone):
        hours[one.weekday(), one.hour] += 1
    found: dict[Any, list[str]] = defaultdict(list)
    for row in rows:
        if row["kind"] in ENDED:
            local = pd.Timestamp(row["finished_at"]).tz_convert(query.zone)
            found[local.weekday(), local.hour].append(row["kind"])
    return {
        key: (len(kinds), len(kinds) - kinds.count("done"), len(kinds) / (hours[key] / 60))
        for key, kinds in found.items()
    }


def errors(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by fingerprint, or by error without a fingerprint."""
    failed = [one for one in rows if one["kind"] in ("retry", "dead", "crashed", "recovered")]
    found = {}
    for one in failed:
        one["cause"] = one["fingerprint"] or ("", one["error"])
    for (cause,), some in grouped(failed, "cause").items():
        times = [one["finished_at"] for one in some]
        jobs = sorted({one["job"] for one in some} - {None}, key=lambda name: name.encode())
        kinds = [one["kind"] for one in some]
        found[some[0]["error"], cause if isinstance(cause, str) else None] = (
            min(times), max(times), len(some), kinds.count("dead"), ", ".join(jobs),
        )  # fmt: skip
    return found


def retries(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by queue and job."""
    found = {}
    for key, some in grouped([one for one in rows if one["kind"] in ENDED], "queue", "job").items():
        kinds = Counter(one["kind"] for one in some)
        finished = kinds["done"] + kinds["dead"]
        run_us = _total(some, "run_us")
        failed_us = _total([one for one in some if one["kind"] != "done"], "run_us")
        found[key] = (
            len(some), kinds["done"], kinds["dead"], kinds["retry"], kinds["crashed"] + kinds["recovered"],
            len(some) / finished if finished else None, (len(some) - kinds["done"]) / len(some),
            failed_us / run_us if run_us else None,
        )  # fmt: skip
    return found


def schedules(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by queue and schedule."""
    starts: dict[Any, list[datetime]] = defaultdict(list)
    for one in rows:
        if one["started_at"] is not None:
            starts[one["queue"], one["mid"]].append(one["started_at"])
    found = {}
    ticks = [one for one in rows if one["kind"] == "tick"]
    for key, some in grouped(ticks, "queue", "job").items():
        late, words = [], [one["error"] for one in some]
        for one in some:
            soonest = one["finished_at"] - timedelta(milliseconds=5)
            after = [at for at in starts[one["queue"], one["fingerprint"]] if at >= soonest]
            if one["error"] in ("enqueued", "waits", "replaced") and after:
                late.append(max(0, (min(after) - one["enqueued_at"]) // timedelta(milliseconds=1)))
        missed = words.count("missed") + sum(max(0, one["attempt"] or 0) for one in some)
        shares = [between(late, q) if late else None for q in (0.5, 0.95, 0.99)]
        skipped = words.count("skipped") + words.count("full")
        found[key] = (
            len(words) - words.count("missed"), len(late), skipped, missed, *shares, max(late, default=None),
        )  # fmt: skip
    return found


def flows(rows: Rows, query: ReportQuery) -> Answer:
    """Steps of one message each, in sequence: by flow and step."""
    ends = [one for one in rows if one["flow"] and one["kind"] in ("done", "dead", "cancelled", "expired")]  # fmt: skip
    steps: dict[Any, dict[str, tuple[int, bool]]] = defaultdict(dict)
    for (flow, step), some in grouped(ends, "flow", "step").items():
        ready = min(one["enqueued_at"] or one["finished_at"] for one in some)
        took = (max(one["finished_at"] for one in some) - ready) // timedelta(milliseconds=1)
        steps[flow][step] = (took, all(one["kind"] in ("dead", "expired") for one in some))
    spans = {
        (flow,): (max(one["finished_at"] for one in some) - min(one["enqueued_at"] for one in some))
        // timedelta(milliseconds=1)
        for (flow,), some in grouped(ends, "flow").items()
    }
    found: Answer = {}
    for name in {flow.partition(":")[0] for flow in steps}:
        own = {flow: some for flow, some in steps.items() if flow.partition(":")[0] == name}
        whole = [spans[flow,] for flow in own]
        paths = Counter(" > ".join(some) for some in own.values())
        failed = sum(died for some in own.values() for _, died in some.values())
        found[name, None] = (
            len(own), sum(map(len, own.values())), failed, between(whole, 0.5), between(whole, 0.95), max(whole),
            None, None, min(path for path, n in paths.items() if n == max(paths.values())),
        )  # fmt: skip
        for step in {step for some in own.values() for step in some}:
            took = [some[step][0] for some in own.values() if step in some]
            died = sum(some[step][1] for some in own.values() if step in some)
            found[name, step] = (
                len(took), len(took), died, between(took, 0.5), between(took, 0.95), max(took), 1.0,
                sum(took) / sum(whole), None,
            )  # fmt: skip
    return found


def slo(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by queue."""
    found: Answer = {}
    may = 1 - query.objective
    for (queue,), some in grouped(
        [one for one in rows if one["first"] is not None], "queue"
    ).items():
        target = query.target_s * 1000
        first = [(one["started_at"].timestamp() // 60, one["first"] > target) for one in some]
        minutes = sorted({minute for minute, _ in first})
        burns = {}
        for length in (5, 60):
            for minute in minutes:
                near = [late for at, late in first if minute - length < at <= minute]
                burns[length, minute] = sum(near) / len(near) / may
        late = sum(one for _, one in first)
        worst = max(burns[60, minute] for minute in minutes)
        worst_at = min(minute for minute in minutes if burns[60, minute] == worst)
        alerts = sum(min(burns[5, one], burns[60, one]) >= query.page_burn for one in minutes)
        found[queue,] = (
            len(first), late, 1 - late / len(first), late / len(first) / may, burns[5, minutes[-1]],
            burns[60, minutes[-1]], max(burns[5, one] for one in minutes), worst,
            pd.Timestamp(worst_at * 60, unit="s", tz="UTC").to_pydatetime() if worst else None, alerts,
        )  # fmt: skip
    return found


def backlog(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by bucket and queue. Queues with recorded enqueues have all enqueues recorded."""
    changes: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    told = {one["queue"] for one in rows if one["kind"] == "enqueued"}
    for one in rows:
        if one["kind"] == "enqueued" or (one["kind"] == "revived" and one["queue"] in told):
            changes[one["queue"]].append((one["finished_at"], 1))
        if one["kind"] == "cancelled" and one["queue"] in told and not one["attempt"]:
            changes[one["queue"]].append((one["finished_at"], -1))
        if one["first"] is not None:
            changes[one["queue"]].append((one["started_at"], -1))
            if one["queue"] not in told:
                changes[one["queue"]].append((one["arrived"], 1))
    found, starts = {}, begins(query)
    for queue, some in changes.items():
        level = 0
        for at, end in zip(starts, [*starts[1:], query.until], strict=True):
            upto = datetime.max.replace(tzinfo=at.tzinfo) if end == query.until else end
            here = [(when, by) for when, by in some if at <= when < upto]
            most = level
            for moment in sorted({when for when, _ in here}):
                level += sum(by for when, by in here if when == moment)
                most = max(most, level)
            basis = "enqueued events" if queue in told else "started messages"
            plus, minus = (sum(by == sign for _, by in here) for sign in (1, -1))
            found[at, queue] = (plus, minus, max(0, most), max(0, level), basis)
    return found


def trace(rows: Rows, query: ReportQuery) -> list[tuple[Any, ...]]:
    """The simulation of the capacity report: queue, arrival, run, whether it counts, and how long of the hour was
    observed, µs."""
    made = []
    for one in _ran(rows):
        at = one["started_at"] if one["first"] is None else min(one["arrived"], one["started_at"])  # fmt: skip
        made.append((pd.Timestamp(at), one["queue"], one["run_us"]))
    hours: Counter[Any] = Counter()
    for at, _, us in made:
        hours[at.floor("h")] += us
    if not hours:
        return []
    most = max(hours.values())
    busiest = min(hour for hour, us in hours.items() if us == most)
    first, last = busiest - pd.Timedelta(minutes=10), busiest + pd.Timedelta(hours=1)
    over = max(pd.Timestamp(one["finished_at"]) for one in _ran(rows) if one["started_at"])
    observed = min(over, last) - max(min(made)[0], busiest)
    return [
        (
            queue,
            round(at.timestamp() * 1e6),
            us,
            at >= busiest,
            observed // pd.Timedelta(microseconds=1),
        )
        for at, queue, us in sorted(made)
        if first <= at < last
    ]


def regressions(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by job: sizes, medians and their bounds."""
    done = [one for one in _ran(rows) if one["kind"] == "done" and one["job"] is not None]
    sides: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for one in done:
        sides[one["job"]][one["started_at"] >= query.compared_at].append(one["run_us"])
    enough = sum(min(len(one), len(two)) >= 30 for one, two in sides.values())
    z = deviate(query.confidence, max(1, enough))
    found = {}
    for job, both in sides.items():
        medians = [side(one, z) if one else (None, None, None) for one in both]
        found[job,] = (
            len(both[0]), len(both[1]), medians[0][0], medians[1][0], *medians[0][1:], *medians[1][1:],
        )  # fmt: skip
    return found


def anomalies(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by hour and job."""
    hours: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in _ran(rows):
        if one["job"] is not None:
            at = pd.Timestamp(one["finished_at"])
            local = at.tz_convert(query.zone)
            past = pd.Timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)  # fmt: skip
            hours[one["job"]][(at - past).to_pydatetime()].append(one["run_us"])
    found = {}
    for job, some in hours.items():
        full = {hour: us for hour, us in some.items() if len(us) >= query.min_runs}
        if len(full) < query.min_hours:
            continue
        tops = pd.Series({hour: quantile(us, 0.95) for hour, us in full.items()})
        usual = tops.median()
        away = (tops - usual).abs()
        scale = away.median() / 0.6745 if away.median() else 1.253314 * away.mean()
        for hour, top in tops.items():
            if scale and (top - usual) / scale > query.min_score:
                found[hour.to_pydatetime(), job] = (
                    len(full[hour]), top, usual, top / max(usual, 1), (top - usual) / scale,
                )  # fmt: skip
    return found


def dead(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by queue, job, error and fingerprint."""
    deaths = [one for one in rows if one["kind"] == "dead"]
    found = {}
    for key, some in grouped(deaths, "queue", "job", "error", "fingerprint").items():
        newest = sorted(some, key=lambda one: (-one["finished_at"].timestamp(), one["mid"]))
        times = [one["finished_at"] for one in some]
        tries = [one["attempt"] for one in some if one["attempt"] is not None]
        found[key] = (
            len(some), len(some) / len(deaths), sum(tries) / len(tries) if tries else None,
            min(times), max(times), ", ".join(one["mid"] for one in newest[:3]),
        )  # fmt: skip
    return found


def _costs(some: Rows, among: Rows) -> tuple[Any, ...]:
    cpu, us = _total(some, "cpu_us"), _total(some, "run_us")
    all_cpu, all_us = _total(among, "cpu_us"), _total(among, "run_us")
    return cpu, cpu / all_cpu if all_cpu else None, us, us / all_us if all_us else None


def cost(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by job."""
    ran, found = _ran(rows), {}
    for key, some in grouped(ran, "job").items():
        cpu, cpu_share, us, share = _costs(some, ran)
        peak = max((one["rss_kib"] for one in some if one["rss_kib"] is not None), default=None)
        each, per_run = cpu / len(some), cpu / us if us else None
        found[key] = (len(some), cpu, cpu_share, each, us, share, per_run, peak)
    return found


def keys(rows: Rows, query: ReportQuery) -> Answer:
    """Compute rows by queue and key, for queues with keys."""
    found = {}
    for (queue,), ran in grouped(_ran(rows), "queue").items():
        for (key,), some in grouped(ran, "key").items():
            if any(one["key"] for one in ran):
                first = [one["first"] for one in some if one["first"] is not None]
                found[queue, key] = (
                    len(first), quantile(first, 0.5), quantile(first, 0.95), max(first, default=None), len(some),
                    *_costs(some, ran),
                )  # fmt: skip
    return found


#: By report: the reference, and the columns of its key. capacity has no key: `trace` gives its rows in order.
REFERENCES: dict[str, tuple[Callable[[Rows, ReportQuery], Answer], tuple[str, ...]]] = {
    "queue-time": (wait, ("queue", "job")), "run-time": (run, ("queue", "job")),
    "throughput": (throughput, ("at", "queue")),
    "heatmap": (heatmap, ("weekday", "hour")), "errors": (errors, ("error", "fingerprint")),
    "retries": (retries, ("queue", "job")), "schedules": (schedules, ("queue", "schedule")),
    "flows": (flows, ("flow", "step")), "slo": (slo, ("queue",)), "backlog": (backlog, ("at", "queue")),
    "regressions": (regressions, ("job",)), "anomalies": (anomalies, ("hour", "job")),
    "dead": (dead, ("queue", "job", "error", "fingerprint")), "cost": (cost, ("job",)),
    "keys": (keys, ("queue", "key")),
}  # fmt: skip
