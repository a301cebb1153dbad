"""The judge: an honest ledger passes, and every seeded fault is caught by its own count."""

from __future__ import annotations

import os

import pytest

from jobq.chaos.ledger import Ledger
from jobq.chaos.verdict import FinalState, verdict_of

from .story import Story, broken, interrupted, poisoned, two_at_once


@pytest.fixture
def story() -> Story:
    return Story()


def test_an_honest_round_holds(story):
    for number, mid in enumerate("abc"):
        story.enqueue(mid)
        story.whole(mid, number)
    verdict = story.judged()
    assert verdict.holds
    assert (verdict.attempts, verdict.acknowledged, verdict.runs) == (3, 3, 3)
    assert verdict.duplicates == verdict.hit == verdict.recovered == 0


def test_started_and_never_ended_is_lost_too(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    assert broken(story.judged()) == {"lost": ["a"]}


def test_poison_is_dead_after_its_runs(story):
    poisoned(story, 3)
    verdict = story.judged(dead=frozenset("a"))
    assert verdict.holds
    assert verdict.dead == 1


@pytest.mark.parametrize("runs", [2, 4])
def test_poison_that_is_dead_after_other_runs_is_undead(story, runs):
    poisoned(story, runs)
    assert broken(story.judged(dead=frozenset("a"))) == {"undead": ["a"]}


@pytest.mark.parametrize(
    ("handed", "recorded", "undead"),
    [(3, 2, []), (4, 3, []), (3, 0, []), (2, 2, ["a"]), (4, 4, ["a"])],
)
def test_timed_poison_is_dead_after_its_runs_although_some_ended_before_they_were_recorded(
    story, handed, recorded, undead
):
    story.say("poison", mid="a", limit=3, timed=True)
    story.enqueue("a")
    for fence in range(handed):
        story.hand("a", fence, pid=fence)
        if fence < recorded:
            story.run("start", "a", fence, pid=fence)
    assert story.judged(dead=frozenset("a")).broken["undead"] == undead


def test_poison_that_lives_is_undead(story):
    poisoned(story, 3)
    verdict = story.judged(waiting=frozenset("a"))
    assert broken(verdict) == {"undead": ["a"], "unfinished": ["a"]}


@pytest.mark.parametrize("outcome", ["info", ""])
def test_unknown_outcome_may_happen_or_not(story, outcome):
    story.enqueue("a", outcome)
    story.enqueue("b", outcome)
    story.whole("a", 1)
    verdict = story.judged()
    assert verdict.holds
    assert verdict.recovered == 1
    assert verdict.acknowledged == 0


@pytest.mark.parametrize("left", [{}, {"waiting": frozenset("a")}])
def test_refused_enqueue_that_took_effect_is_misreported(story, left):
    story.enqueue("a", "fail")
    if not left:
        story.whole("a", 1)
    assert story.judged(**left).broken["misreported"] == ["a"]


def test_first_enqueue_called_a_repetition_is_misreported(story):
    story.enqueue("a", "ok", "exists")
    story.whole("a", 1)
    assert broken(story.judged()) == {"misreported": ["a"]}


def test_end_refused_although_it_took_effect_is_misreported(story):
    story.enqueue("a")
    story.ran("a", 1)
    story.finish("a", 1, "stale")
    assert broken(story.judged()) == {"misreported": ["a"]}


def test_end_refused_after_an_unanswered_report_is_in_order(story):
    story.enqueue("a")
    story.ran("a", 1)
    story.finish("a", 1, "")
    story.finish("a", 1, "stale")
    assert story.judged().holds


def test_cancelled_message_is_in_order_when_it_never_ran_or_its_end_was_refused(story):
    for mid in "ab":
        story.enqueue(mid)
    story.ran("a", 1)
    story.say("cancelled", mids=["a", "b"])
    story.finish("a", 1, "stale")
    assert story.judged().holds


def test_late_run_whose_lease_was_over_is_not(story):
    assert two_at_once(story, left=0.5).holds


def test_end_accepted_after_a_newer_hand_out_is_stale_accepted(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.injected()
    story.run("end", "a", 1, left=-1)
    story.hand("a", 2, pid=2)
    story.finish("a", 1)
    assert broken(story.judged()) == {"stale_accepted": ["a"]}


def test_run_that_a_fork_took_up_is_a_second_one(story):
    story.enqueue("a")
    story.whole("a", 1)
    story.run("end", "a", 1, pid=2)
    assert broken(story.judged()) == {"unexplained": ["a"]}


def test_answer_that_belongs_to_another_call_is_none(story):
    story.enqueue("a")
    story.ran("a", 1)
    story.say("finish", call="c", endings=[["a", "t1", "done"]], pid=1)
    story.say("finished", call="c", replies=[], pid=1)
    assert story.judged().holds


def test_ledger_gives_back_what_was_written_and_leaves_out_a_torn_line(tmp_path):
    ledger = Ledger(str(tmp_path))
    ledger.write("enqueue", mid="a")
    ledger.write("fault", at=1.5, name="kill", pids=[], until=2.0)
    with (tmp_path / f"{os.getpid()}.jsonl").open("a") as file:
        file.write('{"word": "en')
    first, second = ledger.lines()
    assert (first["word"], first["mid"]) == ("enqueue", "a")
    assert second["at"] == 1.5


def limited_at_once(story, count):
    for number in range(count):
        story.enqueue(f"limited-{number}")
    for word in ("start", "end"):
        for number in range(count):
            story.run(word, f"limited-{number}", number)


def test_limits_that_are_used_up_are_not_exceeded(story):
    limited_at_once(story, 3)
    for number in range(120):
        story.say("grant", started=number // 40 * 1_001)
    assert not broken(story.judged()).keys() & {"over_rate", "over_slots"}


def of_key(story: Story, *mids: str, most: int = 2, ordered: bool = False) -> None:
    for mid in mids:
        story.enqueue(mid, key="acme", most=most, ordered=ordered)


def three_of_a_key(story: Story) -> None:
    of_key(story, "a", "b", "c")
    for fence, mid in enumerate("abc"):
        story.hand(mid, fence)
        story.run("start", mid, fence, pid=fence)
    for fence, mid in enumerate("abc"):
        story.run("end", mid, fence, pid=fence)
        story.finish(mid, fence)


def overtaken(story: Story) -> None:
    of_key(story, "a", "b", most=1, ordered=True)
    story.whole("b", 1)
    story.whole("a", 2)


@pytest.mark.parametrize("died_first", [True, False])
def test_run_that_a_kill_ended_counts_until_the_kill(story, died_first):
    of_key(story, "a", "b", most=1)
    story.hand("a", 1)
    story.run("start", "a", 1, pid=1)
    if died_first:
        story.injected((1,))
    story.whole("b", 2, pid=2)
    story.whole("a", 3, pid=2)
    if not died_first:
        story.injected((1,))
    assert broken(story.judged()) == ({} if died_first else {"over_limit": ["acme"]})


PLANTED = {
    "lost": lambda story: story.enqueue("a"),
    "unfinished": lambda story: {"waiting": frozenset("a")},
    "unexpected": lambda story: story.whole("a", 1),
    "unexplained": lambda story: interrupted(story, (9,)),
    "concurrent": lambda story: two_at_once(story, 1.5),
    "over_limit": three_of_a_key,
    "out_of_order": overtaken,
    "stale_accepted": lambda story: (story.enqueue("a"), story.whole("a", 1), story.finish("a", 2)),
    "uncancelled": lambda story: (
        story.enqueue("a"),
        story.ran("a", 1),
        story.say("cancelled", mids=["a"]),
        story.finish("a", 1),
    ),
    "misreported": lambda story: (story.enqueue("a", "fail"), story.whole("a", 1)),
    "wrongly_dead": lambda story: {"dead": frozenset("a")},
    "undead": lambda story: poisoned(story, 4) or {"dead": frozenset("a")},
    "orphans": lambda story: story.say("orphan", pid=7),
    "over_rate": lambda story: [story.say("grant", started=5 * n) for n in range(41)] and None,
    "over_slots": lambda story: limited_at_once(story, 4),
    "ticks": lambda story: story.say("tick", text="s0: enqueued twice"),
    "leaked": lambda story: {"leaked": ("jobq:x",)},
    "fsck": lambda story: {"fsck": ("ready without message: a",)},
    "tracebacks": lambda story: {"tracebacks": ("worker1.log",)},
    "exited": lambda story: {"exited": ("9: 70",)},
}


@pytest.mark.parametrize("count", list(verdict_of([], FinalState()).broken))
def test_every_count_sees_the_fault_that_it_is_there_for(story, count):
    left = PLANTED[count](story)
    verdict = story.judged(**left) if isinstance(left, dict) else story.judged()
    assert broken(verdict).keys() == {count}
    assert not verdict.holds
