"""Thirty faulty handlers and their sound twins. Each pair is one function that takes whether to be sound.

A handler's faults are those that find it. What the sound twin does instead is what the guide advises.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from jobq.errors import Retry
from jobq.jobs.context import current
from tests.testing.shop import DuplicateRowError, shop


class Pair(NamedTuple):
    """A handler, by whether it is sound, its arguments, and the faults of which each must find the faulty one."""

    handler: Callable[..., None]
    args: tuple[object, ...]
    faults: tuple[str, ...]
    other: tuple[object, ...] | None = None


PAIRS: list[Pair] = []


def pair(
    *faults: str, args: tuple[object, ...] = (17, 990), other: tuple[object, ...] | None = None
):
    def add(handler: Callable[..., None]) -> Callable[..., None]:
        PAIRS.append(Pair(handler, args, faults, other))
        return handler

    return add


@pair("twice", "killed", "zombie", "late")
def append_row(sound, order, amount):
    if sound:
        shop.upsert((order, current().generation), amount)
    else:
        shop.append((order, amount))
    done = True
    assert done


@pair("killed", "zombie")
def charge_before_record(sound, order, amount):
    if sound:
        shop.send_once(order, amount)
        shop.upsert(order, amount)
        return
    if shop.get(order) is None:
        shop.send(amount)
        shop.put(order, amount)


@pair("zombie")
def check_then_append(sound, order, amount):
    if sound:
        shop.upsert(order, amount)
        return
    known = [row for row in shop.rows if row[0] == order]
    if not known:
        shop.append((order, amount))


@pair("twice", "killed", "zombie", "late")
def increment(sound, order, amount):
    if sound:
        if shop.upsert((current().mid, "counted"), amount):
            pass
        return
    before = shop.get("total", 0)
    shop.put("total", before + amount)
    shop.put("last", order)


@pair("twice", "killed", "zombie", "late")
def send_then_nothing(sound, order, amount):
    if sound:
        shop.send_once(order, f"receipt {amount}")
    else:
        shop.send(f"receipt {amount}")
    shop.put(order, "sent")


@pair("killed", "zombie")
def send_before_flag(sound, order, amount):
    if sound:
        shop.send_once(order, amount)
        shop.put(order, "sent")
        return
    if shop.get(order) == "sent":
        return
    shop.send(amount)
    shop.put(order, "sent")


@pair("killed")
def flag_before_send(sound, order, amount):
    if sound:
        shop.send_once(order, amount)
        shop.put(order, "sent")
        return
    if shop.upsert((order, "flag"), True):
        shop.send(amount)


@pair("twice", "killed", "late")
def unique_row_that_raises(sound, order, amount):
    try:
        shop.insert(order, amount)
    except DuplicateRowError:
        if not sound:
            raise
    shop.put(order, "done")


@pair("zombie")
def old_value_written_late(sound, order, amount):
    attempt = current().fence
    if sound:
        shop.put_fenced(order, "newest", attempt)
        return
    if attempt > 1:
        shop.put(order, "newest")
        return
    value = "newest" if current().lease_valid() else "stale"
    shop.put(order, value)


@pair("twice", "killed", "zombie", "late")
def attempt_number_in_the_effect(sound, order, amount):
    number = 1 if sound else current().attempt
    shop.put(order, f"attempt {number}")
    finished = True
    assert finished


@pair("twice", "killed", "zombie", "late")
def list_that_grows(sound, order, amount):
    items = [] if sound else list(shop.get(order, []))
    items.append(amount)
    shop.put(order, items)
    shop.put((order, "size"), len(items))


@pair("killed")
def delete_before_copy(sound, order, amount):
    if sound:
        shop.put("copy", amount)
        shop.put("original", None)
        return
    if shop.get("original", amount) is None:
        return
    shop.put("original", None)
    shop.put("copy", amount)


@pair("killed", "zombie")
def batch_without_positions(sound, order, amount):
    for item in range(3):
        if sound:
            shop.upsert((order, item), amount)
        else:
            shop.append((order, item))


@pair("killed", "zombie")
def checkpoint_after_the_effect(sound, order, amount):
    start = current().checkpoint_value or 0
    for item in range(start, 3):
        if sound:
            shop.upsert((order, item), amount)
        else:
            shop.append((order, item))
        current().checkpoint(item + 1)


@pair("killed")
def checkpoint_before_the_effect(sound, order, amount):
    start = current().checkpoint_value or 0
    for item in range(start, 3):
        if sound:
            shop.upsert((order, item), amount)
            current().checkpoint(item + 1)
            continue
        current().checkpoint(item + 1)
        shop.upsert((order, item), amount)


@pair("late")
def window_of_an_hour(sound, order, amount):
    at = shop.get((order, "at"))
    if not sound and at is not None and time.time() - at < 3600:
        return
    if sound:
        shop.upsert(order, amount)
    else:
        shop.append((order, amount))
    shop.put((order, "at"), 0 if sound else time.time())
    shop.values.pop((order, "at"), None) if sound else None


@pair("reordered", args=(17, "paid"), other=(17, "shipped"))
def last_write_wins(sound, order, state):
    rank = {"paid": 1, "shipped": 2}[state]
    if sound:
        best = max(rank, shop.get((order, "rank"), 0))
        shop.put((order, "rank"), best)
        return
    shop.put(order, state)


@pair("reordered", args=("create", 5), other=("close", 5))
def create_and_close(sound, verb, order):
    if sound:
        shop.upsert((order, verb), True)
        return
    if verb == "create":
        shop.put(order, "open")
    elif shop.get(order) == "open":
        shop.put(order, "closed")


@pair("reordered", args=(1, 10), other=(1, 20))
def running_total_text(sound, order, amount):
    if sound:
        shop.upsert((order, amount), amount)
        return
    shop.put(order, f"{shop.get(order, '')}{amount},")


@pair("reordered", args=("b", 1), other=("a", 2))
def first_one_is_the_winner(sound, name, number):
    if sound:
        shop.put("winner", min(name, shop.get("winner", "z")))
        return
    shop.upsert("winner", name)


@pair("killed", "zombie")
def two_tables(sound, order, amount):
    if sound:
        shop.upsert((order, "debit"), amount)
        shop.upsert((order, "credit"), amount)
        return
    if shop.get((order, "booked")):
        return
    shop.append((order, "debit", amount))
    shop.append((order, "credit", amount))
    shop.put((order, "booked"), True)


@pair("killed")
def half_of_a_transfer(sound, order, amount):
    if sound:
        shop.put((order, "from"), -amount)
        shop.put((order, "to"), amount)
        return
    if shop.upsert((order, "seen"), True):
        shop.put((order, "from"), -amount)
        shop.put((order, "to"), amount)


@pair("twice", "killed", "zombie", "late")
def counts_its_runs(sound, order, amount):
    if not sound:
        shop.put("runs", shop.get("runs", 0) + 1)
    shop.upsert(order, amount)


@pair("twice", "killed", "late")
def refuses_a_second_run(sound, order, amount):
    if shop.get(order) is not None and not sound:
        raise Retry(1)
    shop.put(order, amount)
    over = True
    assert over


@pair("zombie")
def lock_by_a_row(sound, order, amount):
    if sound:
        shop.upsert((order, "charged"), amount)
        return
    if shop.get((order, "charged")):
        return
    shop.append((order, amount))
    shop.put((order, "charged"), True)


@pair("killed", "zombie")
def mails_in_a_loop(sound, order, amount):
    for name in ("ada", "bob"):
        if sound:
            shop.send_once((order, name), name)
        else:
            shop.send(name)
    shop.put(order, "mailed")


@pair("killed", "zombie")
def id_from_a_counter(sound, order, amount):
    if sound:
        shop.upsert(order, order)
        return
    number = shop.get("next", 1)
    shop.put("next", number + 1)
    if not any(row[0] == order for row in shop.rows):
        shop.append((order, number))


@pair("twice", "late", "killed", "zombie")
def token_as_the_key(sound, order, amount):
    key = current().generation if sound else current().token
    shop.upsert((order, key), amount)
    ready = True
    assert ready


@pair("killed")
def cleans_up_in_finally(sound, order, amount):
    if sound:
        shop.upsert(order, amount)
        return
    try:
        if shop.upsert((order, "begun"), True):
            shop.put(order, amount)
    finally:
        shop.put("busy", False)


@pair("killed", "zombie")
def swaps_two_values(sound, order, amount):
    if sound:
        shop.put("a", 2)
        shop.put("b", 1)
        return
    a, b = shop.get("a", 1), shop.get("b", 2)
    shop.put("a", b)
    shop.put("b", a)
