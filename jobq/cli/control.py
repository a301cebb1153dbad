"""`jobq control`: pause, resume or drain running workers, restart their children, or dump their stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from jobq.cli.options import option
from jobq.cli.session import Session, command
from jobq.errors import ConfigError
from jobq.queue import orders, presence
from jobq.queue.orders import OrderAnswer


@command(
    "control",
    "quiet web-7:4711",
    "dump web-7:4711 --child 4712",
    "drain web-7:4711 web-8:3022 --wait 30s",
    changes=True,
    operation="control",
    server="joins",
)
@click.argument("verb", type=click.Choice(list(orders.VERBS)))
@click.argument("workers", metavar="WORKER...", nargs=-1, required=True)
@option("--child PID", "With dump: only this child.  [default: all]", type=click.IntRange(1))
@option("--wait DURATION", "How long to wait for answers; 0 returns immediately.", default=15.0)
def control(
    session: Session, verb: str, workers: tuple[str, ...], child: int | None, wait: float
) -> bool:
    """Pause, resume, drain or restart workers, or dump their stacks.

    WORKER is a name from `jobq workers`. If several workers have the name, all of them receive the command. `quiet`
    makes a worker stop fetching messages, until `resume`. `drain` lets a worker finish running jobs and exit. `restart`
    replaces a worker's child processes one by one, without loading new code. `dump` prints the stack of each thread.
    Workers read commands every 5 seconds. A command that is not read within a minute is dropped. Exit code 1: a worker
    rejected the command, or did not answer.
    """
    if child and verb != "dump":
        raise ConfigError(f"--child works only with dump; {verb} applies to the whole worker")
    names = list(dict.fromkeys(workers))
    with session.operation(
        "", " ".join([f"control:{verb}", *(f"worker:{name}" for name in names)])
    ):
        sent = _send(session, names, verb, child or 0)
    if not wait:
        for worker, order_id in sent.items():
            session.say({"worker": worker, "verb": verb, "order": order_id}, f"{worker}: sent")
        return True
    all_done = True
    for worker, answer in orders.answers(session.client, sent, wait):
        all_done &= answer is not None and answer.outcome == "done"
        session.say(
            {"worker": worker, "verb": verb, "order": sent[worker], **_record(answer)},
            *_lines(worker, answer, wait),
        )
    return all_done


def _send(session: Session, names: list[str], verb: str, child: int) -> dict[str, str]:
    """Send the command to each worker. If one of the workers can't read commands, raise an error before sending."""
    client = session.client
    known = presence.workers_named(client, names)
    for name in names:
        if not any(other.partition(presence.TWIN)[0] == name or other == name for other in known):
            raise ConfigError(f"no worker {name!r:.120}; list all workers with 'jobq workers'")
    for entry in known.values():
        orders.check(client, entry)
    by = session.who or orders.this_user()
    return {
        name: orders.send(client, entry, verb, by=by, child=child) for name, entry in known.items()
    }


def _record(answer: OrderAnswer | None) -> dict[str, Any]:
    if answer is None:
        return {"outcome": None, "text": "", "children": []}
    children = [
        {
            "pid": child.pid, "stack": child.stack,
            "running": [{"queue": queue, "mid": mid} for queue, mid in child.running],
        }
        for child in answer.children
    ]  # fmt: skip
    return {"outcome": answer.outcome, "text": answer.text, "children": children}


def _lines(worker: str, answer: OrderAnswer | None, wait: float) -> Iterator[str]:
    if answer is None:
        yield f"{worker}: no answer within {wait:g} s; jobq workers shows its state"
        return
    refused = "" if answer.outcome == "done" else f"{answer.outcome}: "
    yield f"{worker}: {refused}{answer.text}"
    for child in answer.children:
        running = ", ".join(f"{mid} (queue {queue})" for queue, mid in child.running)
        yield f"child {child.pid}: {running or 'runs no job'}"
        yield from child.stack.splitlines()
