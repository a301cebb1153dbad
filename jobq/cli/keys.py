"""`jobq key list | set | hold`: show waiting and running messages by key, and set limits of keys."""

from __future__ import annotations

from heapq import nlargest
from typing import Any

import click

from jobq.cli import output
from jobq.cli.options import group, limit_option, option
from jobq.cli.output import Listing
from jobq.cli.queues import used_names
from jobq.cli.session import Session, command
from jobq.config import duration_s
from jobq.errors import ConfigError
from jobq.queue.directory import queue_names
from jobq.queue.queue import Queue
from jobq.queue.rules import KeyRow

KEYS = Listing(
    ("key", "waiting", "running", "most:most", "weight", "may start:when", "oldest"),
    drops=("oldest", "weight"),
    empty="no messages with a key are waiting or running",
)
#: Options for all keys, with their names for a single key.
OF_ONE = {"key_max": "max", "key_rate": "rate", "key_weight": "weight", "key_waiting": "waiting"}
NONE = "none"

queue_argument = click.argument("name", metavar="QUEUE")


@group("key", "list mail", "set mail --key-max 5 --key-rate 100/m", "hold mail acme 30s")
def key() -> None:
    """Show the keys of a queue, and limit running messages per key.

    Messages with the same key, such as a customer's id, wait in a separate line. The lines take turns.
    """


@command("list", "mail", "mail --all --json", group=key)
@queue_argument
@limit_option(100, 1_000)
@option("--all", "everything", "Show all keys, unsorted.")
def list_(session: Session, name: str, limit: int, everything: bool) -> bool:
    """List keys with waiting or running messages. Keys with the most waiting messages come first.

    The column `most` shows the key's limit on running messages. If a hold or a rate delays the key, `may start` shows
    the time of its next start. `oldest` shows its next message's id. Exit code 1: the queue has never been used.
    """
    for known in used_names(session, (name,)):
        queue = session.queue(known)
        rows = queue.admin.iter_keys()
        shown = rows if everything else iter(nlargest(limit, rows, _waiting))
        session.say_all((_record(session, queue, row) for row in shown), KEYS)
        return True
    return False


def _waiting(row: KeyRow) -> tuple[int, int]:
    return row.waiting, row.running


def _record(session: Session, queue: Queue, row: KeyRow) -> dict[str, Any]:
    facts = row._asdict()
    if session.as_json:
        return {"queue": queue.name, **facts}
    at = output.moment(max(row.held_until, row.starts_at))
    return {**facts, "most": "" if row.max is None else row.max, "when": at}


@command(
    "set",
    "mail",
    "mail --max 200 --key-max 5 --key-rate 100/m",
    "mail acme --max 20 --weight 3",
    "mail acme --max none --weight none",
    group=key,
    operation="key-set",
)
@queue_argument
@click.argument("key_", metavar="[KEY]", required=False)
@option("--max N", "Maximum number of concurrent messages, for the queue or for KEY.")
@option("--key-max N", "Maximum number of concurrent messages per key.")
@option("--key-rate RATE", "Maximum start rate per key: 100/m, 5/s, 1000/h.")
@option("--key-weight N", "Weight of each key: its share of turns.")
@option("--key-waiting N", "Maximum number of waiting messages per key.")
@option("--rate RATE", "Maximum start rate of KEY.")
@option("--weight N", "Weight of KEY: its share of turns.")
@option("--waiting N", "Maximum number of waiting messages of KEY.")
def set_(session: Session, name: str, key_: str | None, **given: str | None) -> None:
    """Set and show the limits of a queue and its keys, or of a single KEY.

    A limit that is not given stays as it is; `none` removes it. A KEY without its own limit uses the queue's limit per
    key. Limits are stored on the server, apply from the next start, and never stop a running job.
    """
    limits = {part: _value(part, text) for part, text in given.items() if text is not None}
    for general, single in OF_ONE.items():
        part = general if key_ else single
        if part in limits and part != "max":
            fits = f"with KEY use --{single}" if key_ else f"pass a KEY, or --{_flag(general)}"
            raise ConfigError(f"--{_flag(part)} is for {'all keys' if key_ else 'one key'}; {fits}")
    queue = session.queue(name)
    known = name in queue_names(session.client)
    asked = [f"key:{key_}"] if key_ else []
    asked += [f"{_flag(part)}:{text}" for part, text in given.items() if text is not None]
    with session.operation(name, " ".join(asked), when=bool(limits)):
        held = queue.rule(key_, **limits) if key_ else queue.rules(**limits)
    facts = {field: _shown(value) for field, value in held._asdict().items()}
    record = {"queue": name, **({"key": key_} if key_ else {}), **facts}
    words = [
        f"{field.replace('_', ' ')} {value}" for field, value in facts.items() if value is not None
    ]
    none = "as all keys" if key_ else "no limits"
    session.say(record, f"{f'{name} {key_}' if key_ else name}: {', '.join(words) or none}")
    if not known:
        session.note(f"queue {name} has never been used here; its limits apply from its first use")


def _flag(parameter: str) -> str:
    return parameter.replace("_", "-")


def _value(parameter: str, text: str) -> Any:
    if text.strip().lower() == NONE:
        return None
    if parameter.endswith("rate"):
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"--{_flag(parameter)} {text!r} is not a whole number; write a number, or none for no limit"
        ) from None


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else str(value)


@command("hold", "mail acme 30s", "mail acme 0", group=key, operation="key-hold")
@queue_argument
@click.argument("key_", metavar="KEY")
@click.argument("duration", metavar="DURATION")
def hold(session: Session, name: str, key_: str, duration: str) -> bool:
    """Delay starts of a key's messages for DURATION; 0 ends the hold.

    Running jobs continue. Exit code 1: the queue has never been used.
    """
    seconds = duration_s(duration)
    for known in used_names(session, (name,)):
        with session.operation(known, f"key:{key_} for:{seconds:g}s"):
            until = session.queue(known).hold(key_, seconds)
        text = f"held for {seconds:g} s" if until else "no longer held"
        session.say({"queue": name, "key": key_, "held_until": until}, f"{name} {key_}: {text}")
        return True
    return False
