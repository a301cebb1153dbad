"""Groups with competing readers: at least once, by leases that tokens fence."""

from __future__ import annotations

import os
import threading

import pytest

from jobq.client.numbered_calls import Caller
from jobq.errors import ConfigError, LeaseLostError, ScriptError
from jobq.topics import GroupNotFoundError, Topic


@pytest.fixture
def ten(topic, at):
    """Ten messages, a second apart, the last at at(0)."""
    for i in range(1, 11):
        topic.append(b"%d" % i, now=at(i * 1_000 - 10_000))
    return topic


def test_poll_gives_messages_in_order_and_then_none(ten, contents):
    reader = ten.reader("g")
    assert contents(reader.poll(4)) == [b"1", b"2", b"3", b"4"]
    assert contents(reader.poll()) == [b"5", b"6", b"7", b"8", b"9", b"10"]
    assert reader.poll() == ([], 0, 0, "", 0, 0, 0)


def test_each_group_sees_all_messages(ten, contents):
    for group in ("a", "b"):
        assert len(contents(ten.reader(group).poll())) == 10


def test_readers_of_one_group_share_its_messages(ten, contents):
    one, other = ten.reader("g"), ten.reader("g")
    assert contents(one.poll(3)) + contents(other.poll(3)) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_uncommitted_messages_come_again_after_their_lease_and_committed_ones_do_not(
    ten, at, contents
):
    dying, living = ten.reader("g", lease=10), ten.reader("g", lease=10)
    lost, kept = dying.poll(3, now=at(0)), dying.poll(3, now=at(0))
    dying.commit(kept)
    assert contents(living.poll(3, now=at(9_999))) == [b"7", b"8", b"9"]
    again = living.poll(now=at(10_000))
    assert contents(again) == contents(lost) == [b"1", b"2", b"3"]
    assert (lost.deliveries, again.deliveries) == (1, 2)


def test_late_commit_is_refused_when_another_reader_has_the_messages(ten, at, facts):
    late, other = ten.reader("g", lease=1), ten.reader("g", lease=1)
    batch = late.poll(3, now=at(0))
    taken = other.poll(3, now=at(1_000))
    before = facts()
    with pytest.raises(LeaseLostError, match=r"'orders'.*'g'.*1 to 3"):
        late.commit(batch)
    with pytest.raises(LeaseLostError):
        late.extend(batch=batch)
    with pytest.raises(LeaseLostError):
        late.release(batch)
    assert facts() == before
    assert other.commit(taken) == 3


def test_late_commit_counts_when_nobody_took_the_messages_over(ten, at, contents):
    late = ten.reader("g", lease=1)
    batch = late.poll(now=at(0))
    assert late.commit(batch) == 10
    assert contents(ten.reader("g").poll(now=at(60_000))) == []


def test_extended_lease_holds_longer(ten, at, contents):
    reader, other = ten.reader("g", lease=1), ten.reader("g")
    reader.poll(10, now=at(0))
    reader.extend(5, now=at(900))
    assert contents(other.poll(now=at(5_899))) == []
    assert len(contents(other.poll(now=at(5_900)))) == 10


def test_released_messages_are_had_at_once(ten, contents):
    reader, other = ten.reader("g"), ten.reader("g")
    reader.poll(4)
    reader.release()
    assert contents(other.poll(4)) == [b"1", b"2", b"3", b"4"]


def test_commit_through_a_message_keeps_the_rest(ten, at, contents):
    reader = ten.reader("g", lease=1)
    batch = reader.poll(5, now=at(0))
    assert reader.commit(batch.messages[1]) == 2
    assert contents(ten.reader("g").poll(5, now=at(1_000))) == [b"3", b"4", b"5"]


def test_commit_of_a_message_is_refused_when_it_is_of_an_earlier_batch(ten, contents):
    reader = ten.reader("g")
    early, late = reader.poll(2), reader.poll(2)
    with pytest.raises(ConfigError, match="isn't in the last polled batch"):
        reader.commit(early.messages[1])
    assert reader.commit(late) == 0  # the earlier ones are still held
    assert reader.commit(early) == 4


def test_long_stretch_is_taken_over_in_parts_when_less_is_asked_for(ten, at, contents):
    ten.reader("g", lease=1).poll(10, now=at(0))
    got = []
    for _ in range(4):
        batch = (reader := ten.reader("g")).poll(3, now=at(1_000))
        got += contents(batch)
        reader.commit()
    assert got == [b"%d" % i for i in range(1, 11)]
    assert ten.group("g").lag().messages == 0


def test_settled_index_waits_for_the_slowest_reader(ten):
    slow, fast = ten.reader("g"), ten.reader("g")
    slow.poll(2)
    fast.poll(8)
    assert fast.commit() == 0
    assert slow.commit() == 10


def test_automatic_commit_settles_with_the_next_poll(ten, at, contents):
    reader = ten.reader("g", commit="auto", lease=1)
    reader.poll(3, now=at(0))
    assert ten.group("g").lag().settled == 0
    reader.poll(3, now=at(1))
    assert ten.group("g").lag().settled == 3
    assert contents(ten.reader("g").poll(9, now=at(5_000))) == [b"4", b"5", b"6"]


def test_automatic_commit_that_came_too_late_is_counted(ten, at, caplog):
    reader = ten.reader("g", commit="auto", lease=1)
    reader.poll(3, now=at(0))
    ten.reader("g").poll(3, now=at(1_000))
    reader.poll(3, now=at(1_001))
    assert reader.nlost == 1
    assert "lease ended before its commit" in caplog.text


def test_reading_commit_settles_at_once(ten, at, contents):
    reader = ten.reader("g", commit="read")
    batch = reader.poll(9, now=at(0))
    assert (batch.token, len(batch.messages)) == ("", 9)
    assert contents(ten.reader("g").poll(now=at(3_600_000))) == [b"10"]
    with pytest.raises(ConfigError, match="no polled batch"):
        reader.commit()


def test_commit_after_an_empty_poll_settles_nothing_and_is_no_error(topic):
    reader = topic.reader("g")
    topic.append(b"v")
    reader.poll()
    assert reader.commit() == 1
    empty = reader.poll()
    assert empty.messages == []
    assert reader.commit() == 1
    assert reader.commit(empty) == 1
    topic.append(b"w")
    reader.poll()
    assert reader.commit() == 2


def test_repeated_poll_is_given_the_same_messages_and_no_others(ten, at, facts):
    reader = ten.reader("g", commit="auto")
    for _ in range(2):
        first = reader.poll(3, now=at(0))
        before = facts()
        reader._caller.number -= 1
        # What the reader knew when it made the call.
        reader._held = None
        assert reader.poll(3, now=at(0)) == first
        assert facts() == before


def test_repeated_poll_is_whole_when_longer_messages_came_meanwhile(topic):
    topic.append_many([b"%d" % i * 500 for i in range(1_000)])
    reader = topic.reader("g")
    first = reader.poll(1_000)
    longest = 1024 * 1024
    topic.append(bytes(longest), key="k" * longest, headers={"h": "h" * (longest - 20)})
    reader._caller.number -= 1
    assert reader.poll(1_000) == first
    assert len(first.messages) == 1_000


def test_commit_through_what_is_no_index_is_refused_and_settles_nothing(ten, facts):
    batch = ten.reader("g").poll(3)
    before = facts()
    with pytest.raises(ScriptError, match="through"):
        ten._binding.call("commit", Caller(), {"token": batch.token, "through": "three"}, group="g")
    assert facts() == before


def test_repeated_commit_is_answered_as_the_first(ten, facts):
    reader = ten.reader("g")
    batch = reader.poll(3)
    assert reader.commit(batch) == 3
    before = facts()
    reader._caller.number -= 1
    assert reader.commit(batch) == 3
    assert facts() == before


def test_paused_group_hands_nothing_out_and_takes_commits(ten, contents):
    reader = ten.reader("g")
    reader.poll(2)
    ten.group("g").pause()
    assert contents(reader.poll()) == []
    assert reader.commit() == 2
    ten.group("g").resume()
    assert contents(reader.poll(1)) == [b"3"]


def test_paused_group_with_an_ended_lease_asks_nobody_to_look_at_once(ten):
    reader = ten.reader("g")
    reader.poll(2)
    reader.release()
    ten.group("g").pause()
    batch, wait_ms, _ = reader.perform(reader._ask(10, None))
    assert (batch.messages, wait_ms) == ([], -1)
    ten.group("g").resume()
    assert len(reader.poll(10).messages) == 2


def test_iteration_commits_a_batch_once_its_last_message_is_done(ten):
    with ten.reader("g", commit="auto") as reader:
        for message in reader:
            if message.index == 10:
                break
    # The tenth was being worked on when the loop was left.
    assert ten.group("g").lag().settled == 9
    assert ten.reader("g").poll().messages[0].index == 10


def test_iteration_that_fails_gives_back_what_is_not_done(ten):
    def work():
        with ten.reader("g", commit="auto") as reader:
            return [1 // (4 - message.index) for message in reader]

    with pytest.raises(ZeroDivisionError):
        work()
    assert ten.group("g").lag().settled == 3
    again = ten.reader("g").poll()
    assert (again.first, again.last, again.deliveries) == (4, 10, 2)


def test_failure_outside_of_an_iteration_commits_nothing(ten):
    def work():
        with ten.reader("g", commit="auto") as reader:
            return len(reader.poll().messages) // 0

    with pytest.raises(ZeroDivisionError):
        work()
    assert ten.group("g").lag().settled == 0


def test_closing_commits_what_auto_polled(ten):
    with ten.reader("g", commit="auto") as reader:
        reader.poll(4)
    assert ten.group("g").lag().settled == 4


def test_closing_gives_back_what_is_not_committed(ten, contents):
    with ten.reader("g") as reader:
        reader.poll(4)
    assert contents(ten.reader("g").poll(4)) == [b"1", b"2", b"3", b"4"]


def test_iteration_renews_its_lease_between_messages(ten, monkeypatch, redis):
    ticking = iter(range(0, 10_000, 1))
    monkeypatch.setattr("jobq.topics.reader.time.monotonic", lambda: next(ticking))
    reader = ten.reader("g", commit="auto", lease=3)
    before = redis.info("commandstats").get("cmdstat_zadd", {"calls": 0})["calls"]
    for message in reader:
        if message.index == 10:
            break
    # One for the poll itself, in two sorted sets, and one per renewal.
    assert redis.info("commandstats")["cmdstat_zadd"]["calls"] - before > 2


def test_waiting_poll_is_woken_by_an_append(topic, client, contents):
    reader = topic.reader("g")
    reader.poll()
    got = []
    waiting = threading.Thread(target=lambda: got.extend(contents(reader.poll(block=60))))
    waiting.start()
    while not any(
        b"xread" in str(c).encode() for c in client.command("CLIENT", "LIST").split(b"\n")
    ):
        pass
    Topic("orders", client).append(b"now")
    waiting.join(120)
    assert got == [b"now"]


def test_waiting_poll_gets_what_another_reader_lets_go(ten, contents):
    ten.reader("g", lease=0.3).poll()
    assert len(contents(ten.reader("g").poll(block=60))) == 10


def test_waiting_poll_ends_empty_when_its_time_is_over(topic):
    assert topic.reader("g").poll(block=0.05).messages == []


def test_waiting_poll_goes_on_when_its_connection_is_killed(topic, client, contents):
    reader = topic.reader("g")
    got = []
    waiting = threading.Thread(target=lambda: got.extend(contents(reader.poll(block=60))))
    waiting.start()
    killed = 0
    while not killed:
        for line in client.command("CLIENT", "LIST").decode().splitlines():
            if "cmd=xread" in line:
                number = line.split()[0].removeprefix("id=")
                killed += client.command("CLIENT", "KILL", "ID", number)
    topic.append(b"after")
    waiting.join(120)
    assert got == [b"after"]


def test_poll_stays_under_a_few_megabytes(topic):
    topic.append_many([b"%d" % i * 500_000 for i in range(8)] + [bytes(1_000_000)] * 8)
    reader = topic.reader("g", commit="read")
    sizes = []
    while messages := reader.poll(1_000).messages:
        sizes.append(sum(len(m.content) for m in messages))
    assert sum(sizes) == 12_000_000
    assert max(sizes) <= 4 * 1024 * 1024


def test_one_long_message_does_not_make_later_polls_short(topic):
    topic.append(bytes(1_000_000))
    topic.append_many([b"%d" % i for i in range(1_000)])
    reader = topic.reader("g", commit="read")
    assert [len(reader.poll(1_000).messages) for _ in range(2)] == [1_000, 1]


@pytest.mark.parametrize(
    "given", [{"lease": 0}, {"lease": 86_401}, {"commit": "never"}, {"out_of_range": "x"}]
)
def test_reader_refuses_what_makes_no_sense(topic, given):
    with pytest.raises(ConfigError):
        topic.reader("g", **given).poll()


@pytest.mark.parametrize("count", [0, 1_001])
def test_poll_refuses_a_count_out_of_bounds(topic, count):
    with pytest.raises(ConfigError, match="between 1 and 1,000"):
        topic.reader("g").poll(count)


def test_group_that_is_missing_is_named(topic):
    for call in (topic.group("g").pause, topic.group("g").lag, lambda: topic.group("g").seek(1)):
        with pytest.raises(GroupNotFoundError, match="'g'"):
            call()


def test_each_message_is_handed_out_once_when_nobody_dies(topic):
    topic.append_many([b"%d" % i for i in range(3_000)])
    seen: list[int] = []

    def work():
        reader = topic.reader("g", commit="auto")
        while messages := reader.poll(7).messages:
            seen.extend(m.index for m in messages)
        reader.close()

    working = [threading.Thread(target=work) for _ in range(4)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    assert sorted(seen) == list(range(1, 3_001))
    assert topic.group("g").lag().messages == 0


def test_interrupt_ends_a_wait_and_an_iteration(topic, client):
    reader = topic.reader("g", commit="auto")
    topic.append(b"1")
    seen = []
    iterating = threading.Thread(target=lambda: seen.extend(reader))
    iterating.start()
    while b"xread" not in client.command("CLIENT", "LIST"):
        pass
    reader.interrupt()
    iterating.join(120)
    assert not iterating.is_alive()
    assert [m.content for m in seen] == [b"1"]
    assert topic.group("g").lag().settled == 1
    assert reader.poll(block=60).messages == []
    reader.resume()
    topic.append(b"2")
    assert reader.poll(block=60).messages[0].content == b"2"


def test_reader_is_refused_in_a_forked_child(topic, tmp_path):
    reader = topic.reader("g")
    topic.append(b"x")
    told = tmp_path / "told"
    child = os.fork()
    if not child:
        try:
            reader.poll()
        except ConfigError as error:
            told.write_text(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert "before this process was forked" in told.read_text()
    assert len(reader.poll().messages) == 1
