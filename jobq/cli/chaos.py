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

from jobq.chaos.cluster import OwnCluster
from jobq.chaos.faults import FAULTS, Fault
from jobq.chaos.figures import missed
from jobq.chaos.place import OwnServer, Place
from jobq.chaos.round import Plan, play
from jobq.chaos.shards import play_on_shards
from jobq.chaos.verdict import Verdict
from jobq.cli import exits
from jobq.cli.options import option
from jobq.cli.session import Session, command
from jobq.config import parse_durability
from jobq.errors import ConfigError

EXAMPLES = """
    jobq chaos
    jobq chaos --fault child-kill --fault lost-reply --jobs 20000
    jobq chaos --url redis://staging --seed 7
    jobq chaos --durability disk --fault server-restart
"""
#: Of an own server, so that `disk` holds there.
ALWAYS = ("--appendfsync", "always")


@command("chaos", examples=EXAMPLES)
@option("--fault", "names", type=click.Choice(list(FAULTS)), multiple=True,
        help="Only this one; repeat for more.  [default: all that the server allows]")  # fmt: skip
@option("--jobs", type=click.IntRange(10), default=2000, show_default=True, help="In each round.")
@option("--seed", type=int, help="Strike as an earlier run did.  [default: another each time]")
@option("--server", metavar="PROGRAM", default="", help="Of the own server.  [default: Valkey]")
@option("--durability", metavar="LEVEL", default="memory", show_default=True,
        help="What producers ask for: memory, disk or replicas=N, which wants N + 1 of them.")  # fmt: skip
def chaos(
    session: Session, names: tuple[str, ...], jobs: int, seed: int | None, server: str,
    durability: str,
) -> int:  # fmt: skip
    """Inject faults and check that no message is lost.

    Workers and producers run while processes are killed and connections cut. A ledger outside the server records
    what happened, and is checked at the end. Runs on a server of its own, or in a namespace of its own on the
    server that --url names. There, faults that disturb other users of the server run only with --fault.
    Exit code 1: a guarantee was broken, or a bound exceeded.
    """
    if session.url and server:
        raise ConfigError("--url names a server that runs, --server a program to run; give one")
    if parse_durability(durability)[0] == "replicas" and not session.url:
        raise ConfigError("an own server has no replicas; name one that has by --url")
    signal.signal(signal.SIGTERM, _terminated)
    seed = random.randrange(10**6) if seed is None else seed
    session.note(f"seed {seed}, {jobs} jobs a round")
    chosen = [FAULTS[name] for name in names] or suitable(session.url)
    rates: dict[str, float] = {}
    kept = [
        _round(session, Plan(one, jobs, seed, durability), server, rates)
        for one in _with_clean(chosen)
    ]
    return exits.OK if all(kept) else exits.NO


def _with_clean(chosen: Iterable[Fault]) -> Iterator[Fault]:
    """Before what is compared with a clean round, that one."""
    played: set[str] = set()
    for fault in chosen:
        if fault.beside and fault.beside not in played:
            yield FAULTS[fault.beside]
        yield fault
        played |= {fault.name, fault.beside}


def suitable(url: str | None) -> list[Fault]:
    """Those that a server may be put to without being asked by name."""
    if url is None:
        return list(FAULTS.values())
    able = {"queues", "proxy", "side"} if Place(url).target else {"queues"}
    return [fault for fault in FAULTS.values() if able.issuperset(fault.needs)]


def _round(session: Session, plan: Plan, server: str, rates: dict[str, float]) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="jobq-chaos-"))
    kept = True
    try:
        options = ALWAYS if plan.durability == "disk" else ()
        verdict = _played(plan, folder, session.url, server, options)
        rates[plan.fault.name] = verdict.rate
        if plan.fault.beside:
            clean = rates[plan.fault.beside]
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
    plan: Plan, folder: Path, url: str | None, server: str, options: Sequence[str]
) -> Verdict:
    if "shards" in plan.fault.needs:
        if url:
            raise ConfigError(f"{plan.fault.name} needs a Cluster of its own; leave out --url")
        with closing(OwnCluster(folder, server, options)) as cluster:
            return play_on_shards(cluster, plan, folder)
    with closing(Place(url) if url else OwnServer(folder, server, options)) as place:
        return play(place, plan, folder)


def _record(plan: Plan, verdict: Verdict, beyond: list[str]) -> dict[str, Any]:
    return {
        "fault": plan.fault.name,
        "seed": plan.seed,
        "holds": verdict.holds and not beyond,
        "bounds": [bound.told for bound in plan.fault.bounds],
        "missed": beyond,
        **verdict._asdict(),
        "audited": verdict.audited and asdict(verdict.audited),
    }


def _line(plan: Plan, verdict: Verdict, beyond: list[str]) -> str:
    facts = (
        f"{plan.fault.name:<15} {'ok    ' if verdict.holds and not beyond else 'BROKEN'} "
        f"faults {verdict.faults:<4} attempts {verdict.attempts:<6} "
        f"acknowledged {verdict.acknowledged:<6} recovered {verdict.recovered:<3} "
        f"hit {verdict.hit:<4} duplicates {verdict.duplicates:<4} refused {verdict.refused:<4} "
        f"{_times(verdict, 'clean' if plan.fault.beside else 'before')}"
    )
    broken = ((name, found) for name, found in verdict.broken.items() if found)
    return (
        facts
        + "".join(f"; {name} {len(found)}: {', '.join(found[:5])}" for name, found in broken)
        + "".join(f"; missed: {one}" for one in beyond)
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
    # As an exception, so that workers and server end with us.
    raise SystemExit(128 + number)
