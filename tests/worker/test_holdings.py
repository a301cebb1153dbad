"""What jobs hold elsewhere: noted by a child, renewed and given back by the supervisor."""

from __future__ import annotations

import pytest

from jobq.errors import UnavailableError
from jobq.queue.types import Message
from jobq.worker.holdings import COUNT, ROOM, HoldingState, Keeping, SharedHoldings
from jobq.worker.shared_state import NEVER, SharedSlots


class FakeKeeper:
    """Remembers what it was asked for."""

    def __init__(self):
        self.renewed, self.left, self.lost, self.away = [], [], set(), False
        self.meanwhile = lambda: None

    def renew(self, client, entries, lease_s):
        """As Keeper.renew."""
        if self.away:
            return [None] * len(entries)
        self.renewed += entries
        self.meanwhile()
        return [entry not in self.lost for entry in entries]

    def leave(self, client, entries):
        """As Keeper.leave."""
        if self.away:
            raise UnavailableError
        self.left += entries


@pytest.fixture
def keeper():
    return FakeKeeper()


@pytest.fixture
def keeping(keeper):
    return Keeping(keeper, None, 15.0)


@pytest.fixture
def child():
    """A child that holds the message `m` with the token `t`."""
    slots = SharedSlots()
    slots.publish(0, [Message("m", b"", 1, 0, 1, "g", "t", 0)], NEVER)
    return slots, SharedHoldings()


def test_what_is_held_is_renewed_and_what_is_only_noted_is_not(keeper, keeping, child):
    _, holdings = child
    holdings.note("t", b"asked")
    holdings.keep(holdings.note("t", b"held"))
    keeping.renew([child])
    assert (keeper.renewed, keeper.left) == ([b"held"], [])


def test_what_a_job_left_behind_is_given_back(keeper, keeping, child):
    slots, holdings = child
    held = holdings.note("t", b"held")
    holdings.keep(held)
    slots.free([0])
    keeper.away = True
    keeping.renew([child])
    assert holdings.is_empty
    keeper.away = False
    keeping.renew([])
    assert (keeper.renewed, keeper.left) == ([], [b"held"])
    holdings.note("u", b"another's")
    holdings.drop(held, b"held")  # late, when its place is taken
    assert [one.entry for one in holdings.left()] == [b"another's"]


def test_what_cannot_be_renewed_is_lost_until_it_can(keeper, keeping, child):
    _, holdings = child
    held = holdings.note("t", b"held")
    holdings.keep(held)
    keeper.lost = {b"held"}
    keeping.renew([child])
    assert holdings.is_lost(held)
    keeper.away = True
    keeping.renew([child])
    assert holdings.is_lost(held)
    keeper.lost, keeper.away = set(), False
    keeping.renew([child])
    assert not holdings.is_lost(held)


def test_what_is_given_back_while_it_is_renewed_is_given_back_again(keeper, keeping, child):
    _, holdings = child
    held = holdings.note("t", b"held")
    holdings.keep(held)
    keeper.meanwhile = lambda: holdings.drop(held, b"held")
    keeping.renew([child])
    assert keeper.left == [b"held"]
    assert holdings.is_empty


def test_all_that_a_dead_child_noted_is_given_back(keeper, keeping, child):
    _, holdings = child
    holdings.note("t", b"asked")
    holdings.keep(holdings.note("t", b"held"))
    keeper.away = True
    keeping.child_gone(holdings)
    holdings.reset()
    assert holdings.is_empty
    keeper.away = False
    keeping.renew([])
    assert keeper.left == [b"asked", b"held"]


def test_there_is_room_for_so_many(child):
    _, holdings = child
    assert holdings.note("t", b"x" * ROOM) is None
    assert [holdings.note("t", b"x") for _ in range(COUNT)] == list(range(COUNT))
    assert holdings.note("t", b"x") is None
    holdings.drop(7, b"x")
    assert holdings.note("t", b"y") == 7


def test_a_child_that_stopped_in_the_midst_of_a_change_is_passed_over(keeper, keeping, child):
    _, holdings = child
    holdings.keep(holdings.note("t", b"held"))
    holdings._lock.acquire()
    keeping.renew([child])
    holdings.confirm(holdings.left(), HoldingState.FREE)
    holdings._lock.release()
    assert keeper.renewed == []
    assert not holdings.is_empty


def test_what_cannot_be_read_after_a_renewal_is_not_given_back(keeper, keeping, child):
    _, holdings = child
    holdings.keep(holdings.note("t", b"held"))
    # The child is amid a change when the supervisor looks again.
    keeper.meanwhile = holdings._lock.acquire
    keeping.renew([child])
    assert (keeper.renewed, keeper.left) == ([b"held"], [])
    holdings._lock.release()
    keeper.meanwhile = lambda: None
    keeping.renew([child])
    assert (keeper.renewed, keeper.left) == ([b"held", b"held"], [])
