"""The judge: an honest ledger passes, and every seeded fault is caught by its own count."""

from __future__ import annotations

import os

import pytest

from jobq.chaos.ledger import Ledger, Line
from jobq.chaos.verdict import Final, Verdict, judge, quantile


class Story:
    """Writes a ledger's lines, a millisecond after one another."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.now = 100.0

    def say(self, word: str, **fields: object) -> None:
        self.now += 0.001
        self.lines.append({"word": word, "at": self.now, **fields})

    def enqueue(self, mid: str, outcome: str = "ok", action: str = "added") -> None:
        self.say("enqueue", mid=mid)
        if outcome:
            self.say("enqueued", mid=mid, outcome=outcome, action=action)

    def hand(self, mid: str, fence: int, pid: int = 1) -> None:
        self.say("handed", messages=[[mid, f"t{fence}", fence]], pid=pid)

    def run(self, word: str, mid: str, fence: int, pid: int = 1, left: float = 2.0) -> None:
        self.say(word, mid=mid, attempt=1, fence=fence, pid=pid, left=left)

    def finish(self, mid: str, fence: int, reply: str = "ok", outcome: str = "done") -> None:
        call = f"c{len(self.lines)}"
        self.say("finish", call=call, endings=[[mid, f"t{fence}", outcome]], pid=1)
        if reply:
            self.say("finished", call=call, replies=[reply], pid=1)

    def whole(self, mid: str, fence: int, pid: int = 1) -> None:
        self.hand(mid, fence, pid)
        self.run("start", mid, fence, pid)
        self.run("end", mid, fence, pid)
        self.finish(mid, fence)

    def fault(self, pids: tuple[int, ...] = (), cuts: bool = True, spares: bool = False) -> None:
        self.say(
            "fault", name="kill", pids=list(pids), until=self.now + 0.001, cuts=cuts, spares=spares
        )  # fmt: skip

    def judged(self, **final: object) -> Verdict:
        return judge(self.lines, Final(**final))  # type: ignore[arg-type]


@pytest.fixture
def story() -> Story:
    return Story()


def broken(verdict: Verdict) -> dict[str, list[str]]:
    return {name: found for name, found in verdict.broken.items() if found}


def test_an_honest_round_holds(story):
    for number, mid in enumerate("abc"):
        story.enqueue(mid)
        story.whole(mid, number)
    verdict = story.judged()
    assert verdict.holds
    assert (verdict.attempts, verdict.acknowledged, verdict.runs) == (3, 3, 3)
    assert verdict.duplicates == verdict.hit == verdict.recovered == 0


def test_accepted_and_never_run_is_lost(story):
    story.enqueue("a")
    assert broken(story.judged()) == {"lost": ["a"]}


def test_started_and_never_ended_is_lost_too(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    assert broken(story.judged()) == {"lost": ["a"]}


def test_what_still_waits_is_unfinished(story):
    story.enqueue("a")
    assert broken(story.judged(waiting=frozenset("a"))) == {"unfinished": ["a"]}


def poisoned(story: Story, runs: int) -> None:
    story.say("poison", mid="a", limit=3)
    story.enqueue("a")
    for fence in range(runs):
        story.hand("a", fence, pid=fence)
        story.run("start", "a", fence, pid=fence)


def test_poison_is_dead_after_its_runs(story):
    poisoned(story, 3)
    verdict = story.judged(dead=frozenset("a"))
    assert verdict.holds
    assert verdict.dead == 1


@pytest.mark.parametrize("runs", [2, 4])
def test_poison_that_is_dead_after_other_runs_is_undead(story, runs):
    poisoned(story, runs)
    assert broken(story.judged(dead=frozenset("a"))) == {"undead": ["a"]}


def test_poison_that_lives_is_undead(story):
    poisoned(story, 3)
    verdict = story.judged(waiting=frozenset("a"))
    assert broken(verdict) == {"undead": ["a"], "unfinished": ["a"]}


def test_what_was_no_poison_is_wrongly_dead(story):
    story.enqueue("a")
    assert broken(story.judged(dead=frozenset("a"))) == {"wrongly_dead": ["a"]}


def test_run_that_nobody_asked_for_is_unexpected(story):
    story.whole("a", 1)
    assert broken(story.judged()) == {"unexpected": ["a"]}


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
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.run("end", "a", 1)
    story.finish("a", 1, "stale")
    assert broken(story.judged()) == {"misreported": ["a"]}


def test_end_refused_after_an_unanswered_report_is_in_order(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.run("end", "a", 1)
    story.finish("a", 1, "")
    story.finish("a", 1, "stale")
    assert story.judged().holds


def test_second_run_without_a_fault_is_unexplained(story):
    story.enqueue("a")
    story.whole("a", 1)
    story.hand("a", 2, pid=2)
    story.run("start", "a", 2, pid=2)
    story.run("end", "a", 2, pid=2)
    verdict = story.judged()
    assert broken(verdict) == {"unexplained": ["a"]}
    assert verdict.duplicates == 1


def interrupted(story: Story, pids: tuple[int, ...], cuts: bool = True) -> Verdict:
    """A run by process 1 whose end nobody hears of, a fault, and a run by process 2."""
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.run("end", "a", 1)
    story.fault(pids, cuts)
    story.now += 2
    story.whole("a", 2, pid=2)
    return story.judged()


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
    story.fault()
    story.hand("a", 2, pid=2)
    story.run("start", "a", 2, pid=2)
    story.run("end", "a", 2, pid=2)
    story.finish("a", 2, "stale")
    assert broken(story.judged()) == {"unexplained": ["a"]}


def repeated(story: Story, *mids: str) -> None:
    """Each runs to its end by a process of its own, once more after a fault."""
    for pid, mid in enumerate(mids, 1):
        story.enqueue(mid)
        story.hand(mid, 1, pid)
        story.run("start", mid, 1, pid)
        story.run("end", mid, 1, pid)
    story.fault(tuple(range(1, len(mids) + 1)))
    story.now += 2
    for mid in mids:
        story.whole(mid, 2, pid=9)


def test_fault_hits_every_message_that_its_processes_ran(story):
    repeated(story, "a", "b")
    verdict = story.judged()
    assert verdict.holds
    assert (verdict.faults, verdict.hit, verdict.duplicates) == (1, 2, 2)


def test_message_of_a_third_process_is_unexplained_by_a_fault_of_two(story):
    repeated(story, "a", "b")
    story.enqueue("c")
    story.whole("c", 1, pid=3)
    story.hand("c", 2, pid=4)
    story.run("start", "c", 2, pid=4)
    story.run("end", "c", 2, pid=4)
    assert broken(story.judged()) == {"unexplained": ["c"]}


def test_one_fault_explains_one_further_run_and_no_more(story):
    repeated(story, "a")
    story.hand("a", 3, pid=4)
    story.run("start", "a", 3, pid=4)
    story.run("end", "a", 3, pid=4)
    verdict = story.judged()
    assert broken(verdict) == {"unexplained": ["a"]}
    assert (verdict.hit, verdict.duplicates) == (1, 2)


@pytest.mark.parametrize("spares", [True, False])
def test_kill_that_spares_what_had_ended_explains_only_what_ran(story, spares):
    for mid in ("a", "b"):
        story.enqueue(mid)
        story.hand(mid, 1)
        story.run("start", mid, 1)
        story.run("end", mid, 1)
    story.fault((1,), spares=spares)
    for mid in ("a", "b"):
        story.whole(mid, 2, pid=2)
    verdict = story.judged()
    assert broken(verdict) == ({"unexplained": ["a"]} if spares else {})
    assert verdict.hit == (1 if spares else 2)


def test_ends_reported_too_late_are_counted(story):
    two_at_once(story, left=0.5)
    assert story.judged().refused == 1


def test_run_beyond_its_lease_overruns_it(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.run("aborted", "a", 1, left=-0.25)
    assert story.judged().overrun == 0.25


def test_rate_is_of_good_messages_from_the_first_start_to_the_last_end(story):
    poisoned(story, 3)
    for mid in "bcde":
        story.enqueue(mid)
        story.whole(mid, 1)
        story.now += 0.1
    verdict = story.judged(dead=frozenset("a"))
    assert verdict.rate == pytest.approx(4 / 0.319, rel=0.01)


def test_lateness_of_the_machine_is_told_beside(story):
    story.say("late", most=0.4)
    assert story.judged().late == 0.4


def test_quantile_is_the_least_value_that_such_a_share_keeps():
    values = [float(n) for n in range(1, 201)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1)) == (100, 198, 200)
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([], 0.5) is None


def test_recovery_is_from_the_fault_to_the_next_run(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.fault(pids=(1,))
    story.now += 0.75
    story.whole("a", 2, pid=2)
    verdict = story.judged()
    assert verdict.holds
    assert verdict.recovery_p50 == verdict.recovery_max == pytest.approx(0.752)
    assert verdict.duplicates == 0


def two_at_once(story: Story, left: float) -> Verdict:
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1, left=left)
    story.fault(pids=(1,))
    story.now += 1
    story.hand("a", 2, pid=2)
    story.run("start", "a", 2, pid=2)
    story.now += 1
    story.run("end", "a", 1, left=-1)
    story.run("end", "a", 2, pid=2)
    story.finish("a", 1, "stale")
    story.finish("a", 2)
    return story.judged()


def test_two_runs_with_a_lease_each_are_concurrent(story):
    assert broken(two_at_once(story, left=1.5)) == {"concurrent": ["a"]}


def test_late_run_whose_lease_was_over_is_not(story):
    assert two_at_once(story, left=0.5).holds


def test_end_accepted_after_a_newer_hand_out_is_stale_accepted(story):
    story.enqueue("a")
    story.hand("a", 1)
    story.run("start", "a", 1)
    story.fault()
    story.run("end", "a", 1, left=-1)
    story.hand("a", 2, pid=2)
    story.finish("a", 1)
    assert broken(story.judged()) == {"stale_accepted": ["a"]}


def test_two_ends_accepted_are_one_too_many(story):
    story.enqueue("a")
    story.whole("a", 1)
    story.finish("a", 2)
    assert broken(story.judged()) == {"stale_accepted": ["a"]}


def test_what_is_left_on_the_server_counts(story):
    story.say("orphan", pid=7)
    verdict = story.judged(leaked=("jobq:x",), fsck=("ready without message a",), tracebacks=("w",))
    assert broken(verdict) == {
        "orphans": ["7"], "leaked": ["jobq:x"], "fsck": ["ready without message a"],
        "tracebacks": ["w"],
    }  # fmt: skip


def test_ledger_gives_back_what_was_written_and_leaves_out_a_torn_line(tmp_path):
    ledger = Ledger(str(tmp_path))
    ledger.write("enqueue", mid="a")
    ledger.write("fault", at=1.5, name="kill", pids=[], until=2.0)
    with (tmp_path / f"{os.getpid()}.jsonl").open("a") as file:
        file.write('{"word": "en')
    first, second = ledger.lines()
    assert (first["word"], first["mid"]) == ("enqueue", "a")
    assert second["at"] == 1.5


PLANTED = {
    "lost": lambda story: story.enqueue("a"),
    "unfinished": lambda story: {"waiting": frozenset("a")},
    "unexpected": lambda story: story.whole("a", 1),
    "unexplained": lambda story: interrupted(story, (9,)),
    "concurrent": lambda story: two_at_once(story, 1.5),
    "stale_accepted": lambda story: (story.enqueue("a"), story.whole("a", 1), story.finish("a", 2)),
    "misreported": lambda story: (story.enqueue("a", "fail"), story.whole("a", 1)),
    "wrongly_dead": lambda story: {"dead": frozenset("a")},
    "undead": lambda story: poisoned(story, 4),
    "orphans": lambda story: story.say("orphan", pid=7),
    "leaked": lambda story: {"leaked": ("jobq:x",)},
    "fsck": lambda story: {"fsck": ("ready without message: a",)},
    "tracebacks": lambda story: {"tracebacks": ("worker1.log",)},
}


@pytest.mark.parametrize("count", list(judge([], Final()).broken))
def test_every_count_sees_the_fault_that_it_is_there_for(story, count):
    left = PLANTED[count](story)
    verdict = story.judged(**left) if isinstance(left, dict) else story.judged()
    assert verdict.broken[count]
    assert not verdict.holds
