"""What a child's death comes to, whatever its messages say by then."""

from __future__ import annotations

import os
import resource
from dataclasses import replace

import pytest

from jobq.client.numbered_calls import Caller
from jobq.config import CodecSettings
from jobq.events import columns_of
from jobq.jobs.codec import encode
from jobq.jobs.registry import Registry, job
from jobq.worker.child_exit import ChildExit, end_held
from jobq.worker.shared_state import ALL_HANDED, HeldMessage, SlotState


@pytest.fixture
def died(queue):
    """died(mid, token): a child killed while it ran that message."""

    def end_it(mid, token):
        held = [HeldMessage(0, SlotState.RUNNING, 0, mid, token)]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        [crash] = end_held(ChildExit(os.getpid(), 9, usage, "", held, 5), 0, queue, 3, "w")
        return crash

    return end_it


def test_crash_names_job_attempt_queue_and_what_follows(queue, died):
    queue.enqueue(encode("resize"), mid="m")
    [message] = queue.dequeue().messages
    crash = died("m", message.token)
    assert crash.what == f"resize m attempt 1 of queue {queue.name}"
    assert crash.follows == "; it runs again"


def test_crash_of_a_job_with_a_separator_in_its_name_is_recorded_in_its_columns(queue, died, redis):
    queue.enqueue(encode("a\x1fb\nc"), mid="m")
    [message] = queue.dequeue().messages
    assert died("m", message.token).job == "a\\x1fb c"
    [(_, fields)] = redis.xrange(f"{queue.prefix}events")
    [(version, record)] = fields.items()
    found = columns_of(record, version)
    assert (found["job"], found["attempt"], found["error"]) == ("a\\x1fb c", 1, "crash")


def test_crash_names_no_job_when_the_mid_was_cancelled_and_is_another_life_s(queue, died):
    queue.enqueue(encode("one"), mid="m")
    [message] = queue.dequeue().messages
    queue.cancel("m")
    queue.enqueue(encode("other"), mid="m")
    crash = died("m", message.token)
    assert (crash.job, crash.attempt, crash.follows) == ("", 0, "")
    assert crash.what == f"m of queue {queue.name}"


@pytest.mark.parametrize("mode", ["", "sign", "encrypt"])
def test_crash_that_makes_a_message_dead_is_remembered_after_the_purge(
    queue, died, redis, monkeypatch, mode
):
    if mode:
        codec = CodecSettings(keys=(("k", b"s" * 32),), mode=mode)
        settings = replace(queue.client.settings, codec=codec)
        monkeypatch.setattr(queue.client, "settings", settings)
    act = job(queue=queue.name, registry=Registry(), client=queue.client, remember="10m")(print)
    receipt = act.enqueue()
    for _ in range(3):
        assert not redis.exists(queue.result_key(receipt.mid))
        [message] = queue.dequeue().messages
        died(message.mid, message.token)
    assert receipt.state()[:2] == ("failed", 3)
    queue.admin.purge(*(dead.dead_id for dead in queue.admin.dead()))
    state = receipt.state()
    assert state[:2] == ("failed", 3) and "was killed by SIGKILL" in state.error
    assert 590_000 < redis.pttl(queue.result_key(receipt.mid)) <= 600_000


@pytest.fixture
def read_and_died(queue):
    """read_and_died(suspect, states): a child killed with these states of its slots, for a reason if given."""

    def die(suspect, states, status=9, *, in_thread=False, limit=3, **more):
        caller = Caller()
        messages = queue.dequeue(len(states), caller=caller).messages
        held = [
            HeldMessage(slot, state, 0, message.mid, message.token, in_thread)
            for slot, (message, state) in enumerate(zip(messages, states, strict=True))
            if state != SlotState.FREE
        ]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        death = ChildExit(os.getpid(), status, usage, caller.id, held, 5, suspect=suspect, **more)
        return [crash.mid for crash in end_held(death, 0, queue, limit, "w")]

    for mid in "abc":
        queue.enqueue(encode("f"), mid=mid)
    return die


HELD, RUNNING, TAKEN, ENDED, FREE = (
    SlotState.HELD, SlotState.RUNNING, SlotState.TAKEN, SlotState.ENDED, SlotState.FREE
)  # fmt: skip


@pytest.mark.parametrize(
    ("suspect", "states", "charged"),
    [
        (0, (HELD, RUNNING, HELD), "b"),
        (3, (RUNNING, ENDED, HELD), "c"),
        (3, (RUNNING, HELD, TAKEN), ""),
        (ALL_HANDED, (RUNNING, FREE, FREE), "bc"),
        (0, (RUNNING, FREE, FREE), "a"),
    ],
)
def test_death_charges_what_was_read_if_anything_was(read_and_died, suspect, states, charged):
    assert "".join(read_and_died(suspect, states)) == charged


@pytest.mark.parametrize(
    ("suspect", "states", "charged"),
    [
        (3, (RUNNING, ENDED, HELD), "ac"),
        (3, (RUNNING, RUNNING, TAKEN), "ab"),
        (ALL_HANDED, (RUNNING, FREE, FREE), "abc"),
        (ALL_HANDED, (RUNNING, HELD, FREE), "ac"),
    ],
)
def test_death_charges_what_ran_in_threads_beside_what_was_read_and_none_is_dead_of_it(
    queue, read_and_died, suspect, states, charged
):
    assert "".join(read_and_died(suspect, states, in_thread=True, limit=1)) == charged
    assert queue.admin.dead() == []
    assert [queue.status(mid).ncrashes for mid in charged] == [1] * len(charged)


def test_message_that_ran_in_a_thread_is_dead_of_a_death_while_nothing_was_read(
    queue, read_and_died
):
    assert read_and_died(0, (RUNNING, HELD, HELD), in_thread=True, limit=1) == ["a"]
    assert [dead.mid for dead in queue.admin.dead()] == ["a"]


def test_reply_counts_as_arrived_only_when_it_hands_out_messages(queue):
    arrived: list[int] = []
    caller = Caller(lambda: arrived.append(1))
    queue.dequeue(caller=caller)
    assert not arrived
    queue.enqueue(encode("f"))
    queue.dequeue(caller=caller)
    assert arrived == [1]


@pytest.mark.parametrize("why", ["lease", "shutdown", "hard timeout"])
def test_death_that_the_supervisor_caused_charges_no_reader(read_and_died, why):
    assert read_and_died(3, (RUNNING, HELD, HELD), killed_for=why) == []
    assert read_and_died(ALL_HANDED, (FREE, FREE, FREE), killed_for=why) == []


def test_message_among_many_unread_ones_is_not_dead_of_their_death(queue, read_and_died):
    assert read_and_died(ALL_HANDED, (FREE, FREE, FREE)) == ["a", "b", "c"]
    assert queue.admin.dead() == []
    assert [queue.status(mid).ncrashes for mid in "abc"] == [1, 1, 1]
    assert len(queue.dequeue(9).messages) == 1, "each comes alone from now on"


def test_death_takes_no_more_off_a_forged_record_than_one_call_hands_out(queue, redis):
    tokens = {f"m{index}": f"gone.5.{index}" for index in range(1_500)}
    redis.hset(f"{queue.prefix}tokens", mapping=tokens)
    redis.set(f"{queue.prefix}call:gone", "5\x1e\x1e" + "\x1f".join(["0", "0", "0", "0", *tokens]))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    end_held(ChildExit(os.getpid(), 9, usage, "gone", [], 5), 0, queue, 3, "w")
    assert redis.hlen(f"{queue.prefix}tokens") == 500
