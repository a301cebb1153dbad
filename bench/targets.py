"""Targets of jobq relative to its peers, and whether a run reached them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

#: (peer, figure) -> median, None where it wasn't measured.
Medians = Callable[[str, str], float | None]
PYTHON = ("rq", "celery", "dramatiq", "huey", "arq", "saq", "taskiq")
NOOP, CPU = "drain no-op, 2 processes", "drain 1 ms CPU, 2 processes"
#: The machine's other core is the server's.
CPU_ALONE, CORES = "drain 1 ms CPU, 1 process", 2
MIXED = "drain no-op beside async jobs, 2 processes"
WAITING = "drain jobs that wait 20 ms, 2 x 100 threads"
NAPPING = "drain jobs that wait 20 ms, 2 x 100 coroutines"
OF_WORKER, OF_SERVER = "{}, CPU of the worker per job", "{}, CPU of the server per job"
#: After the figures of systems that reach the server over TCP.
TCP = ", TCP"
#: How long jobs wait -> what they cost the server, and how many such jobs one core of it carries.
LENGTHS = {"1 ms": 0.001, "20 ms": 0.02, "1 s": 1.0}
SERVER_COST, PER_CORE = (
    "a job of {}, CPU of the server",
    "jobs of {} that a core of the server carries",
)
SINGLE, BULK = "enqueue one at a time", "enqueue in bulk"
BESIDE = "drain no-op beside {} delayed"
DEQUEUE = "dequeue of 64 with {} ready p99"
PAGE_HOLDS = "longest call of {}"
LISTS = (
    "messages --all",
    "messages --place due --all",
    "messages --place circle --all",
    "dead list --all",
)
LATE = "due job late beside 1,000,000 delayed, {} p99"


class Target(NamedTuple):
    """A promise: at least, or at most, `bound`."""

    case: str
    asked: str
    bound: float
    found: Callable[[Medians], float | None]
    unit: str = ""
    at_least: bool = False


def _own(figure: str, peer: str = "own") -> Callable[[Medians], float | None]:
    return lambda medians: medians(peer, figure)


def _ratio(above: tuple[str, str], *below: tuple[str, str]) -> Callable[[Medians], float | None]:
    """Return a function that computes the ratio to the greatest figure in `below`."""

    def found(medians: Medians) -> float | None:
        mine = medians(*above)
        known = [value for one in below if (value := medians(*one)) is not None]
        return mine / max(known) if mine is not None and known and max(known) else None

    return found


def _to(figure: str, *peers: str) -> Callable[[Medians], float | None]:
    return _ratio(("own", figure), *((peer, figure) for peer in peers))


def installed(figure: str) -> str:
    """The figure of a drain by a worker that logs as it is installed."""
    return f"{figure}, as installed"


def _of_cores(figure: str) -> Callable[[Medians], float | None]:
    """The share of all cores that a drain keeps busy, the server's part included."""

    def found(medians: Medians) -> float | None:
        rate, *per_job = (
            medians("own", format_)
            for format_ in (figure, OF_WORKER.format(figure), OF_SERVER.format(figure))
        )
        if rate is None or None in per_job:
            return None
        return rate * sum(filter(None, per_job)) / 1e6 / CORES

    return found


LOUD = installed(NOOP)
TARGETS = (
    Target("drain no-op, 2 children, as installed", "≥ 85 % of quiet", 85,
           _ratio(("own", LOUD), ("own", NOOP)), "%", True),
    Target("drain no-op, 2 children, as installed", "≥ 3 × Sidekiq as installed", 3, _to(LOUD, "sidekiq"), "×", True),
    Target("drain no-op, 2 children, as installed", "≥ 5 × the best Python peer as installed", 5, _to(LOUD, *PYTHON),
           "×", True),
    Target("drain no-op, 2 children", "≥ 3 × the best Python peer", 3, _to(NOOP, *PYTHON), "×", True),
    Target("drain no-op, 2 children", "≥ 2.5 × Sidekiq", 2.5, _to(NOOP, "sidekiq"), "×", True),
    Target("drain no-op, 2 children", "≥ 2.5 × BullMQ", 2.5, _to(NOOP, "bullmq"), "×", True),
    Target("drain no-op, 2 children", "≥ 50 % of a bare loop over its scripts", 50,
           _to(NOOP, "scripts"), "%", True),
    Target("drain 1 ms CPU, 2 children", "≥ 95 % of two bare processes", 95, _to(CPU, "bare"), "%", True),
    Target("drain 1 ms CPU, 1 child, as installed", "≥ 96 % of a bare process", 96,
           _ratio(("own", installed(CPU_ALONE)), ("bare", CPU_ALONE)), "%", True),
    Target("drain 1 ms CPU, 2 children, as installed", "≥ 99 % of two cores by the CPU that a job takes", 99,
           _of_cores(installed(CPU)), "%", True),
    Target("enqueue, single", "≥ 85 % of bare EVALSHA", 85, _to(SINGLE, "scripts"), "%", True),
    Target("enqueue_many", "≥ 150,000/s", 150_000, _own(BULK), "/s", True),
    Target("idle pick-up p50", "≤ 2 × a bare BLMOVE hand-off", 2, _to("idle pick-up p50", "lists"), "×"),
    Target("idle pick-up p99", "≤ 1.5 ms", 1.5, _own("idle pick-up p99"), "ms"),
    Target("memory, queued", "≤ 200 B", 200, _own("memory per queued job"), "B"),
    Target("memory, delayed", "≤ 380 B", 380, _own("memory per delayed job"), "B"),
    Target("left after a drain", "nothing but events and keys with a TTL", 0, _own("keys left after a drain"), "keys"),
    Target("idle, supervisor and 2 children", "≤ 5 commands/s", 5, _own("idle, 2 processes, commands"), "/s"),
    Target("idle, 20 children", "≤ 20 commands/s", 20, _own("idle, 20 processes, commands"), "/s"),
    Target("memory of supervisor and 2 children", "≤ 42 MB PSS", 42, _own("worker of 2 processes, PSS of all"), "MB"),
    Target("beside a million delayed: ready drain", "≥ 95 % of the rate without", 95,
           _ratio(("own", BESIDE.format("1,000,000")), ("own", BESIDE.format("0"))), "%", True),
    Target("beside a million delayed: a due job at rest", "≤ 50 ms late p99", 50, _own(LATE.format("at rest")), "ms"),
    Target("beside a million delayed: a due job under load", "≤ 1 s late p99", 1_000,
           _own(LATE.format("under load")), "ms"),
    Target("beside a million delayed: a retry of 100 ms", "≤ 200 ms", 200,
           _own("retry of 100 ms beside 1,000,000 delayed p99"), "ms"),
    Target("a million ready: dequeue p99", "≤ 1.5 × with a thousand", 1.5,
           _ratio(("own", DEQUEUE.format("1,000,000")), ("own", DEQUEUE.format("1,000"))), "×"),
    Target("import jobq", "≤ 80 ms", 80, _own("import jobq"), "ms"),
    Target("first enqueue of a fresh process", "≤ 40 ms", 40, _own("first enqueue of a fresh process"), "ms"),
    Target("worker's first job after start", "≤ 0.25 s", 0.25, _own("first job after start of the worker"), "s"),
    Target("a killed child's job runs again", "≤ 1 s", 1, _own("killed worker's job runs again"), "s"),
    Target("an idle worker: a tick's job", "≤ 1 s late p99", 1_000, _own("a tick's job starts late, 1 worker p99"),
           "ms"),
    *(Target(f"a call of {name}", "≤ 10 ms", 10, _own(PAGE_HOLDS.format(name)), "ms") for name in LISTS),
)  # fmt: skip
#: Targets for waiting jobs.
WAIT_TARGETS = (
    Target("waiting jobs, in threads", "≥ Sidekiq", 1, _to(WAITING, "sidekiq"), "×", True),
    Target("waiting jobs, in threads", "≥ 1.6 × Dramatiq", 1.6, _to(WAITING, "dramatiq"), "×", True),
    Target("waiting jobs, in threads: CPU of the worker", "≤ 0.5 × Dramatiq's", 0.5,
           _to(OF_WORKER.format(WAITING), "dramatiq"), "×"),
    Target("waiting jobs, in threads: CPU of the server", "≤ 25 µs", 25, _own(OF_SERVER.format(WAITING)), "µs"),
    # Timers of asyncio are up to 1 ms late, so even bare loops run fewer than the ideal 10,000 jobs/s.
    Target("waiting jobs, as coroutines", "≥ 96 % of two bare event loops", 96, _to(NAPPING, "bare"), "%", True),
    Target("waiting jobs, as coroutines", "≥ BullMQ", 1, _to(NAPPING, "bullmq"), "×", True),
    Target("waiting jobs, as coroutines: CPU of the worker", "≤ 60 µs", 60, _own(OF_WORKER.format(NAPPING)), "µs"),
    Target("waiting jobs, as coroutines: CPU of the server", "≤ 25 µs", 25, _own(OF_SERVER.format(NAPPING)), "µs"),
)  # fmt: skip
SCRIPT_MS = 1.0


def judged(
    medians: Medians, scripts: dict[str, float], targets: Sequence[Target] = TARGETS
) -> Iterator[tuple[str, str, str, str]]:
    """Case, target, figure, and `reached` or by how much it was missed; `scripts`: p99 in ms by name."""
    for target in targets:
        value = target.found(medians)
        if value is None:
            yield target.case, target.asked, "", "not measured"
            continue
        if target.unit == "%":
            value *= 100
        yield target.case, target.asked, shown(value, target.unit), _verdict(target, value)
    slow = {name: p99 for name, p99 in scripts.items() if p99 > SCRIPT_MS}
    worst = max(scripts.items(), key=lambda item: item[1], default=("", 0.0))
    verdict = "**missed** by " + "; ".join(slow) if slow else "reached"
    if scripts:
        yield (
            "each script p99",
            "≤ 1 ms at its default limits",
            f"{worst[1]:.2f} ms ({worst[0]})",
            verdict,
        )


def shown(value: float, unit: str = "") -> str:
    """A figure with as many digits as mean something."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    space = "" if unit in ("", "/s") else " "
    return f"{value:,.{digits}f}{space}{unit}"


def _verdict(target: Target, value: float) -> str:
    if value >= target.bound if target.at_least else value <= target.bound:
        return "reached"
    if not target.bound:
        return f"**missed** by {shown(value, target.unit)}"
    return f"**missed** by {abs(value / target.bound - 1):.0%}"
