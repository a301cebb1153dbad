"""Runs hit by a fault, the failures this explains, and the other measurements."""

from __future__ import annotations

import pytest

from jobq.chaos.verdict import quantile

from .story import Story, broken, interrupted, poisoned, repeated, two_at_once


@pytest.fixture
def story() -> Story:
    return Story()


def test_second_run_without_a_fault_is_unexplained(story):
    story.enqueue("a")
    story.whole("a", 1)
    story.ran("a", 2, pid=2)
    verdict = story.judged()
    assert broken(verdict) == {"unexplained": ["a"]}
    assert verdict.duplicates == 1


@pytest.mark.parametrize("pids", [(), (1,)])
def test_fault_explains_a_second_run_of_what_it_hit(story, pids):
    verdict = interrupted(story, pids)
    assert verdict.holds
    assert (verdict.duplicates, verdict.faults) == (1, 1)


def test_fault_that_hit_another_process_explains_nothing(story):
    assert broken(interrupted(story, (9,))) == {"unexplained": ["a"]}


def test_fault_that_must_not_cut_a_run_explains_nothing(story):
    verdict = interrupted(story, (), cuts=False)
    assert broken(verdict) == {"unexplained": ["a"]}
    assert verdict.hit == 0


def test_fault_after_the_end_was_accepted_explains_nothing(story):
    story.enqueue("a")
    story.whole("a", 1)
    story.injected()
    story.ran("a", 2, pid=2)
    story.finish("a", 2, "stale")
    assert broken(story.judged()) == {"unexplained": ["a"]}


def test_fault_hits_every_message_that_its_processes_ran(story):
    repeated(story, "a", "b")
    verdict = story.judged()
    assert verdict.holds
    assert (verdict.faults, verdict.hit, verdict.duplicates) == (1, 2, 2)


def test_message_of_a_third_process_is_unexplained_by_a_fault_of_two(story):
    repeated(story, "a", "b")
    story.enqueue("c")
    story.whole("c", 1, pid=3)
    story.ran("c", 2, pid=4)
    assert broken(story.judged()) == {"unexplained": ["c"]}


def test_one_fault_explains_one_further_run_and_no_more(story):
    repeated(story, "a")
    story.ran("a", 3, pid=4)
    verdict = story.judged()
    assert broken(verdict) == {"unexplained": ["a"]}
    assert (verdict.hit, verdict.duplicates) == (1, 2)


@pytest.mark.parametrize("spares", [True, False])
def test_kill_that_spares_what_had_ended_explains_only_what_ran(story, spares):
    for mid in ("a", "b"):
        story.enqueue(mid)
        story.ran(mid, 1)
    story.injected((1,), spares=spares)
    for mid in ("a", "b"):
        story.whole(mid, 2, pid=2)
    verdict = story.judged()
    assert broken(verdict) == ({"unexplained": ["a"]} if spares else {})
    assert verdict.hit == (1 if spares else 2)


def test_each_thread_may_have_an_end_that_was_not_noted(story):
    for thread, mid in enumerate("abcd"):
        story.enqueue(mid)
        story.ran(mid, 1, thread=thread % 2)
    story.injected((1,), spares=True)
    for mid in "abcd":
        story.whole(mid, 2, pid=2)
    assert broken(story.judged()) == {"unexplained": ["a", "b"]}


def test_job_that_gives_slots_back_may_have_an_end_that_was_not_noted(story):
    for mid in ("limited-a", "limited-b", "c"):
        story.enqueue(mid)
        story.ran(mid, 1)
    story.injected((1,), spares=True)
    for mid in ("limited-a", "limited-b", "c"):
        story.whole(mid, 2, pid=2)
    assert broken(story.judged()) == {}


def test_ends_reported_too_late_are_counted(story):
    two_at_once(story, left=0.5)
    assert story.judged().refused == 1


def test_run_beyond_its_lease_overruns_it(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.run("aborted", "a", 1, left=-0.25)
    assert story.judged().overrun == 0.25


@pytest.mark.parametrize(("word", "overrun"), [("aborted", 0.0), ("end", 0.25)])
def test_run_on_a_loop_that_stood_still_overran_only_if_it_had_its_effect(story, word, overrun):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1, loop=True)
    story.run(word, "a", 1, left=-0.25, loop=True)
    assert story.judged().overrun == overrun


def test_rate_is_of_good_messages_from_the_first_start_to_the_last_end(story):
    poisoned(story, 3)
    for mid in "bcde":
        story.enqueue(mid)
        story.whole(mid, 1)
        story.now += 0.1
    verdict = story.judged(dead=frozenset("a"))
    assert verdict.rate == pytest.approx(4 / 0.319, rel=0.01)


def test_lateness_of_the_machine_is_told_beside(story):
    story.say("late", worst=0.4)
    assert story.judged().late == 0.4


def test_machine_that_stood_still_explains_a_second_run_and_is_no_fault(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.say("stall", until=story.now + 1)
    story.now += 1
    story.run("end", "a", 1)
    story.now += 1
    story.whole("a", 2, pid=2)
    verdict = story.judged()
    assert verdict.holds
    assert (verdict.faults, verdict.hit, verdict.duplicates) == (0, 1, 1)


def test_quantile_is_the_least_value_that_such_a_share_keeps():
    values = [float(n) for n in range(1, 201)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1)) == (100, 198, 200)
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([], 0.5) is None


def test_run_whose_end_was_accepted_amid_a_fault_needs_no_other(story):
    story.enqueue("a")
    story.say("fault", name="blackhole", pids=[], until=story.now + 5, cuts=True)
    story.whole("a", 1)
    story.ran("a", 2, pid=2)
    assert broken(story.judged()) == {"unexplained": ["a"]}


def test_run_begun_before_the_other_was_accepted_is_explained(story):
    story.enqueue("a")
    story.say("fault", name="blackhole", pids=[], until=story.now + 5, cuts=True)
    story.hand("a", 1)
    story.run("start", "a", 1, left=0.0005)
    story.hand("a", 2, pid=2)
    story.run("start", "a", 2, pid=2)
    story.run("end", "a", 1, left=-1)
    story.run("end", "a", 2, pid=2)
    story.finish("a", 1, "stale")
    story.finish("a", 2)
    assert story.judged().holds


def test_recovery_is_from_the_fault_to_the_next_run(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.injected(pids=(1,))
    story.now += 0.75
    story.whole("a", 2, pid=2)
    verdict = story.judged()
    assert verdict.holds
    assert verdict.recovery_p50 == verdict.recovery_max == pytest.approx(0.752)
    assert verdict.duplicates == 0


@pytest.mark.parametrize(
    ("poisoned_pid", "ended_before", "holds"), [(1, 1, True), (9, 1, False), (1, 2, False)]
)
def test_poison_explains_the_last_end_in_its_process_and_no_more(
    story, poisoned_pid, ended_before, holds
):
    story.say("poison", mid="poison", limit=1)
    story.enqueue("poison")
    mids = [f"job{number}" for number in range(ended_before)]
    for mid in mids:
        story.enqueue(mid)
        story.ran(mid, 1)
    story.hand("poison", 1, pid=poisoned_pid)
    story.run("start", "poison", 1, pid=poisoned_pid)
    for mid in mids:
        story.whole(mid, 2, pid=2)
    found = broken(story.judged(dead={"poison"}))
    assert found == ({} if holds else {"unexplained": ["job0"]})
