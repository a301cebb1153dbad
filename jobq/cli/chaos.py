"""`jobq chaos`: inject faults and check that no message is lost."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click

from jobq.chaos.cluster_round import run_cluster_round
from jobq.chaos.faults import FAULTS
from jobq.chaos.flow_round import run_flow_round
from jobq.chaos.round import RoundPlan, run_round
from jobq.chaos.round_setup import Fault
from jobq.chaos.servers import OwnCluster, OwnServer, TargetServer
from jobq.chaos.verdict import Verdict, missed
from jobq.cli.options import option
from jobq.cli.session import Session, command
from jobq.config import parse_durability
from jobq.errors import ConfigError

#: Options of a server that jobq starts, so that it can confirm `disk`.
ALWAYS = ("--appendfsync", "always")


@command(
    "chaos",
    "",
    "--fault child-kill --fault lost-reply --jobs 20000",
    "--url redis://staging --seed 7",
    "--durability disk --fault server-restart",
)
@option(
    "--fault",
    "names",
    "Only this fault; repeatable.  [default: all that this server supports]",
    type=click.Choice(list(FAULTS)),
    multiple=True,
)
@option("--jobs", "Number of jobs per round.", type=click.IntRange(10), default=2000)
@option("--seed", "Repeat the faults of an earlier run.  [default: random]", type=int)
@option("--server PROGRAM", "Server program to start.  [default: Valkey]", default="")
@option(
    "--durability LEVEL",
    "Durability of enqueues: memory, disk, or replicas=N with N + 1 replicas.",
    default="memory",
)
def chaos(
    session: Session, names: tuple[str, ...], jobs: int, seed: int | None, server: str,
    durability: str,
) -> bool:  # fmt: skip
    """Inject faults and check that no message is lost.

    Workers and producers run while the command kills processes and cuts connections. The command starts a server, or
    uses a separate namespace on the server in --url. A fault that disturbs other users is injected only if --fault
    names it. Exit code 1: a guarantee was broken, or a measured figure is out of bounds.
    """
    if session.url and server:
        raise ConfigError(
            "--url names a running server, and --server a program to start; use only one"
        )
    if parse_durability(durability)[0] == "replicas" and not session.url:
        raise ConfigError(
            "a server that this command starts has no replicas; choose a server with --url"
        )
    signal.signal(signal.SIGTERM, _terminated)
    seed = random.randrange(10**6) if seed is None else seed
    session.note(f"seed {seed}, {jobs} jobs a round")
    chosen = [FAULTS[name] for name in names] or suitable(session.url)
    rates: dict[str, float] = {}
    kept = [
        _round(session, RoundPlan(fault, jobs, seed, durability), server, rates)
        for fault in _with_clean(chosen)
    ]
    return all(kept)


def _with_clean(chosen: Iterable[Fault]) -> Iterator[Fault]:
    """Yield the chosen faults, preceded by a baseline without faults for comparison."""
    played: set[str] = set()
    for fault in chosen:
        if fault.baseline and fault.baseline not in played:
            yield FAULTS[fault.baseline]
        yield fault
        played |= {fault.name, fault.baseline}


def suitable(url: str | None) -> list[Fault]:
    """Return the faults that the command injects if --fault is not given."""
    if url is None:
        return list(FAULTS.values())
    able = {"queues", "proxy", "side"} if TargetServer(url).target else {"queues"}
    return [fault for fault in FAULTS.values() if able.issuperset(fault.needs)]


def _round(session: Session, plan: RoundPlan, server: str, rates: dict[str, float]) -> bool:
    try:
        folder = Path(tempfile.mkdtemp(prefix="jobq-chaos-"))
    except OSError as error:
        raise ConfigError(
            f"can't create a temporary folder: {error.strerror}; set TMPDIR"
        ) from error
    kept = True
    try:
        options = ALWAYS if plan.durability == "disk" else ()
        verdict = _played(plan, folder, session.url, server, options)
        rates[plan.fault.name] = verdict.rate
        if plan.fault.baseline:
            clean = rates[plan.fault.baseline]
            verdict = verdict._replace(share=verdict.rate / clean if clean else 0.0)
        beyond = list(missed(verdict, plan.fault.bounds))
        kept = not verdict.holds or bool(beyond)
        session.say(_record(plan, verdict, beyond), _line(plan, verdict, beyond))
        return not kept
    finally:
        if kept:
            session.note(f"the ledger and the logs are in {folder}")
        else:
            shutil.rmtree(folder)


def _played(
    plan: RoundPlan, folder: Path, url: str | None, server: str, options: Sequence[str]
) -> Verdict:
    if "shards" in plan.fault.needs:
        if url:
            raise ConfigError(f"{plan.fault.name} needs a Cluster of its own; leave out --url")
        with closing(OwnCluster(folder, server, options)) as cluster:
            run = run_flow_round if "flows" in plan.fault.needs else run_cluster_round
            return run(cluster, plan, folder)
    with closing(TargetServer(url) if url else OwnServer(folder, server, options)) as target:
        return run_round(target, plan, folder)


def _record(plan: RoundPlan, verdict: Verdict, beyond: list[str]) -> dict[str, Any]:
    return {
        "fault": plan.fault.name,
        "seed": plan.seed,
        "holds": verdict.holds and not beyond,
        "bounds": [bound.text for bound in plan.fault.bounds],
        "missed": beyond,
        **verdict._asdict(),
        "audited": verdict.audited and asdict(verdict.audited),
    }


def _line(plan: RoundPlan, verdict: Verdict, beyond: list[str]) -> str:
    facts = (
        f"{plan.fault.name:<15} {'ok    ' if verdict.holds and not beyond else 'BROKEN'} "
        f"faults {verdict.faults:<4} attempts {verdict.attempts:<6} "
        f"acknowledged {verdict.acknowledged:<6} recovered {verdict.recovered:<3} "
        f"hit {verdict.hit:<4} duplicates {verdict.duplicates:<4} refused {verdict.refused:<4} "
        f"{_times(verdict, 'clean' if plan.fault.baseline else 'before')}"
    )
    broken = ((name, ids) for name, ids in verdict.broken.items() if ids)
    return (
        facts
        + "".join(f"; {name} {len(ids)}: {', '.join(ids[:5])}" for name, ids in broken)
        + "".join(f"; missed: {text}" for text in beyond)
    )


def _times(verdict: Verdict, than: str) -> str:
    times = [f"{verdict.rate:.0f}/s"]
    if verdict.share is not None:
        times.append(f"{verdict.share:.0%} of {than}")
    if verdict.recovery_max is not None:
        times.append(
            f"{verdict.recoveries} ran again after p50 {verdict.recovery_p50:.2f} s, "
            f"p99 {verdict.recovery_p99:.2f} s, max {verdict.recovery_max:.2f} s"
        )
    if verdict.overrun:
        times.append(f"overrun {verdict.overrun:.2f} s")
    return ", ".join([*times, f"machine late {verdict.late:.2f} s"])


def _terminated(number: int, frame: FrameType | None) -> None:
    # Raise, so that workers and server are stopped.
    raise SystemExit(128 + number)
