"""Pages of limits and keys, and actions that change them."""

from __future__ import annotations

import time
from heapq import nlargest
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.client.connection import Client
from jobq.config import duration_s
from jobq.errors import ConfigError
from jobq.limits.directory import (
    DAMAGED,
    LimitRecord,
    hold_limit,
    limit_facts,
    limit_names,
    set_limit,
    unset_limit,
)
from jobq.limits.keys import limit_names as limits_key
from jobq.queue.directory import listed_queues, queue_names
from jobq.queue.folding import by_base
from jobq.queue.queue import Queue
from jobq.queue.rules import KeyRow
from jobq.schedules.listing import queues_with
from jobq.web.access.identity import UserRole
from jobq.web.acting import performing
from jobq.web.paging import PER_PAGE, page_number
from jobq.web.rendering import render
from jobq.web.routes import action, form_of, nav, page, path_to
from jobq.web.site import site_of

#: If there are more limits, their list is sorted by name instead of by use.
MAX_SORTED = 1_000
#: Maximum number of a queue's keys that a page reads, and maximum time.
MAX_KEYS, MAX_S = 20_000, 1.0
MAX_SEARCH_LENGTH = 200
#: Durations of the hold buttons.
HOLDS = ("1m", "10m", "1h")
_NUMBERS = ("max", "weight", "waiting")


def _has_limits(client: Client) -> bool:
    return bool(client.command("EXISTS", limits_key(client.namespace)))


def _has_keys(client: Client) -> bool:
    return bool(_queues_with_keys(client))


def _queues_with_keys(client: Client) -> list[str]:
    return [*by_base(queues_with(client, listed_queues(client).names, "keys", "rules"))]


nav("limits", "Limits", section="Control", order=20, shown=lambda site: site.uses("limits", _has_limits))  # fmt: skip
nav("keys", "Keys", section="Control", order=30, shown=lambda site: site.uses("keys", _has_keys))


@page("/limits")
def limits(request: Request) -> Response:
    """List limits, the most used limits first."""
    client, query = site_of(request).client, request.query_params
    wanted = query.get("q", "")[:MAX_SEARCH_LENGTH].strip()
    names = limit_names(client)
    matching = [name for name in names if wanted.lower() in name.lower()]
    number = page_number(query.get("page", ""), len(matching))
    part = slice((number - 1) * PER_PAGE, number * PER_PAGE)
    if len(matching) > MAX_SORTED:
        rows = limit_facts(client, matching[part])
    else:
        rows = sorted(limit_facts(client, matching), key=_fullest_first)[part]
    return render(
        request, "limits.html", rows=rows, total=len(names), matching=len(matching), q=wanted, number_of_page=number,
        pages=-(-len(matching) // PER_PAGE), damaged=DAMAGED,
    )  # fmt: skip


def _fullest_first(record: LimitRecord) -> tuple[Any, ...]:
    used = record.used / record.max if record.max else 0
    return (record.rule != DAMAGED, not record.held_ms, -used, record.limit)


@page("/limits/{limit}")
def limit(request: Request) -> Response:
    """Show one limit: its use, its holders, and forms to change it."""
    client, name = site_of(request).client, request.path_params["limit"]
    if name not in limit_names(client):
        raise HTTPException(404, f"no limit {name!r:.120}")
    [facts] = limit_facts(client, [name])
    return render(request, "limit.html", facts=facts, damaged=DAMAGED, holds=HOLDS)


@action("/limits/{limit}/change", role=UserRole.OPERATE)
def change_limit(request: Request) -> Response:
    """Set, hold or remove a limit. A hold rejects all starts under the limit for a given time."""
    form, name = form_of(request), request.path_params["limit"]
    verb, value = str(form.get("verb", "")), str(form.get("value", "")).strip()[:100]
    what = {"set": f" rule:{value}", "hold": f" for:{value}", "unset": ""}
    if verb not in what:
        raise HTTPException(400, f"unknown verb {verb!r:.40}; use set, unset or hold")
    if name not in limit_names(site_of(request).client):
        raise HTTPException(404, f"no limit {name!r:.120}")
    with performing(request, f"limit-{verb}", filter=f"limit:{name}{what[verb]}") as client:
        if verb == "set":
            set_limit(client, name, value)
        elif verb == "hold":
            hold_limit(client, name, duration_s(value))
        else:
            unset_limit(client, name)
    return RedirectResponse(path_to(request, "limit", limit=name), 303)


@page("/keys")
def keys(request: Request) -> Response:
    """Show a queue's keys with counts of waiting and running messages. Keys with more waiting messages come first."""
    client, query = site_of(request).client, request.query_params
    names, chosen = _queues_with_keys(client), query.get("queue", "")
    chosen = chosen or (names[0] if names else "")
    wanted = query.get("q", "")[:MAX_SEARCH_LENGTH].strip()
    if chosen and chosen not in names:
        raise HTTPException(404, f"queue {chosen!r:.120} has no keys")
    rows, looked_at, whole = _rows(Queue(chosen, client), wanted) if chosen else ([], 0, True)
    return render(
        request, "keys.html", queues=names, queue=chosen, rows=rows, q=wanted, looked_at=looked_at, whole_queue=whole,
        now_ms=client.clock_ms(), holds=HOLDS, most=PER_PAGE,
    )  # fmt: skip


def _rows(queue: Queue, wanted: str) -> tuple[list[KeyRow], int, bool]:
    """Return the keys with the most waiting messages, the number of searched keys, and whether all were searched."""
    rows, looked_at, until = [], 0, time.monotonic() + MAX_S
    for row in queue.admin.iter_keys():
        if looked_at >= MAX_KEYS or time.monotonic() > until:
            break
        looked_at += 1
        if wanted.lower() in row.key.lower():
            rows.append(row)
    else:
        return nlargest(PER_PAGE, rows, key=_most), looked_at, True
    return nlargest(PER_PAGE, rows, key=_most), looked_at, False


def _most(row: KeyRow) -> tuple[int, int]:
    return row.waiting, row.running


@action("/keys/change", role=UserRole.OPERATE)
def change_key(request: Request) -> Response:
    """Hold a key, so that its messages don't start, or change the key's limits."""
    form = form_of(request)
    verb, name, key = (str(form.get(field, "")) for field in ("verb", "queue", "key"))
    if name not in queue_names(site_of(request).client):
        raise HTTPException(404, f"no queue {name!r:.120}")
    if verb == "hold":
        value = str(form.get("value", "")).strip()[:40]
        with performing(request, "key-hold", queue=name, filter=f"key:{key} for:{value}") as client:
            Queue(name, client).hold(key, duration_s(value))
    elif verb == "set":
        texts = {field: str(form.get(field, "")).strip()[:40] for field in ("rate", *_NUMBERS)}
        given = {field: text for field, text in texts.items() if text}
        words = [f"key:{key}", *(f"{field}:{text}" for field, text in given.items())]
        with performing(request, "key-set", queue=name, filter=" ".join(words)) as client:
            Queue(name, client).rule(key, **_limits(given))
    else:
        raise HTTPException(400, f"unknown verb {verb!r:.40}; use hold or set")
    return RedirectResponse(path_to(request, "keys", queue=name, q=key), 303)


def _limits(given: dict[str, str]) -> dict[str, Any]:
    if not given:
        raise ConfigError(
            "no limit given; fill in at least one field, or enter 'none' in a field to remove its limit"
        )
    return {field: _limit(field, text) for field, text in given.items()}


def _limit(field: str, text: str) -> int | str | None:
    if text.lower() == "none":
        return None
    if field not in _NUMBERS:
        return text
    if not text.isdecimal():
        raise ConfigError(
            f"{field} {text!r} is not a whole number; correct it, enter 'none' for no limit, or leave the field empty"
        )
    return int(text)
