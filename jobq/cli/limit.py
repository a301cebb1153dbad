"""`jobq limit`: show, change and hold limits on the server."""

from __future__ import annotations

from typing import Any

import click

from jobq.cli.options import DURATION, group
from jobq.cli.output import Listing
from jobq.cli.session import Session, command
from jobq.limits.directory import LimitRecord, hold_limit, limit_facts, set_limit, unset_limit

LIMITS = Listing(
    ("limit", "rule", "used", "waits", "held", ":remark"),
    empty="no limits yet; a limit appears when a program first uses RateLimit or ConcurrencyLimit",
)
#: Holders named in the table.
NAMED = 3
name_argument = click.argument("name", metavar="LIMIT")


@group("limit", "list", "set stripe 200/m", "hold stripe 30s")
def limit() -> None:
    """List, change or hold the limits on rates and concurrency that programs share."""


@command("list", "", "--json", group=limit)
def list_limits(session: Session) -> None:
    """List the limits.

    rule: a rate, or a number of slots. used: starts in the last period of the rate, or slots in use; for rates above
    10,000, the used part of the burst. waits: time until the last waiting caller may start. held: time until the hold
    ends. The last column shows differences from the limits in code, and the owners of slots.
    """
    facts = limit_facts(session.client)
    if session.as_json:
        session.say_all(facts, LIMITS)
        return
    session.say_all(map(_row, facts), LIMITS)


def _row(record: LimitRecord) -> dict[str, Any]:
    remarks = [f"set here; in code: {record.program}"] if record.set_here else []
    if record.holders:
        named = ", ".join(holder.who for holder in record.holders[:NAMED])
        more = len(record.holders) - NAMED
        remarks.append(f"in use by {named}" + f" and {more} more" * (more > 0))
    return {
        "limit": record.limit, "rule": record.rule, "used": record.used, "waits": _seconds(record.waits_ms),
        "held": _seconds(record.held_ms), "remark": "; ".join(remarks),
    }  # fmt: skip


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms else ""


@command("set", "stripe 200/m", "erp 80", group=limit, operation="limit-set")
@name_argument
@click.argument("rule")
def set_rule(session: Session, name: str, rule: str) -> None:
    """Set a limit on the server: a rate, such as 200/m, or a number of slots.

    The next call uses this limit instead of the limit in code. Each program logs the override once.
    """
    with session.operation("", f"limit:{name} rule:{rule}"):
        set_limit(session.client, name, rule)
    session.say({"limit": name, "rule": rule}, f"{name}: {rule}, overriding the limit in code")


@command("unset", "stripe", group=limit, operation="limit-unset")
@name_argument
def unset(session: Session, name: str) -> bool:
    """Remove the limit from the server, so that programs use the limit in their code.

    Exit code 1: the limit was not set on the server.
    """
    with session.operation("", f"limit:{name}"):
        was_set = unset_limit(session.client, name)
    session.say(
        {"limit": name, "was_set": was_set}, f"{name}: limit from code" + " already" * (not was_set)
    )
    return was_set


@command("hold", "stripe 30s", "stripe 0", group=limit, operation="limit-hold")
@name_argument
@click.argument("duration", type=DURATION)
def hold(session: Session, name: str, duration: float) -> None:
    """Stop granting starts or slots for DURATION; 0 ends the hold.

    Slots in use stay in use. The command doesn't shorten a longer hold.
    """
    with session.operation("", f"limit:{name} for:{duration:g}s"):
        hold_limit(session.client, name, duration)
    text = f"held for {duration:g} s" if duration else "not held"
    session.say({"limit": name, "held_ms": round(1000 * duration)}, f"{name}: {text}")
