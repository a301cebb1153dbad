"""History kept outside Redis: held messages, and the dues of each mid."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Flavour:
    """One way to enqueue."""

    delay: int | str = ""
    update: int = 0
    requeue: int = 0
    lock: int | str = ""
    dedupe: int | str = ""
    """'@3': refused for 3 ms from the enqueue on."""
    again: str = ""
    at_most: int | str = ""
    key: str = ""
    ordered: bool = False


@dataclass(frozen=True)
class Scope:
    """Possible events, and how often they may happen. Kinds without a budget are unlimited."""

    name: str
    flavours: dict[str, Flavour]
    budget: dict[str, int]
    endings: tuple[str, ...] = ("done",)
    actions: tuple[str, ...] = ("extend", "collect")
    workers: str = "AB"
    mids: tuple[str, ...] = ("m1",)
    batches: tuple[str, ...] = ()
    """Mids, with commas, that are enqueued in one call."""
    hold_cap: int = 1
    limit: int = 1
    lease: int = 4
    backoff: int = 2
    margin: int = 1
    """Time before the end of a lock or backoff at which the clock also stops."""
    crash_limit: int = 2
    calls: bool = False
    """Late and repeated deliveries of every call, in every state."""
    lap: int = 0
    """When set, a dequeue's upkeep looks at so few mids: as if there were thousands."""
    walks: tuple[int, int, int, int] = (1, 0, 10, 1_000)
    """The circle is walked every so many hand-outs, and after so many ms: each time, unless the scope asks for less;
    every so many hand-outs where it has more mids than that."""
    ticks: tuple[int, ...] = ()
    """When a schedule has its ticks, from the start; the first is enqueued as the first mid, and so on."""
    overlap: str = "skip"
    tick_key: str = ""
    """Of the messages that ticks enqueue."""
    tracebacks: bool = False
    """Whether attempts that are retried leave a traceback."""
    on_dead: bool = False
    """Whether each death adds a message."""
    dead_max: int = 0
    """When set, so many of the dead are kept; else as many as by default."""
    rule: tuple[int | str, ...] = ()
    """Of all keys: most, starts, span_ms, weight, waiting."""
    most: int = 0
    """Messages of the queue that run at once, 0 = any number."""
    pause_ms: int = 0
    """How long a pause that ends by itself takes."""
    remembers: bool = False
    """Whether contents say how long their ends are remembered."""
    idle: bool = False
    """The idle protocol is part of the state; elsewhere its flag is checked and then taken away."""
    depth: int = 9
    """Steps of the short form: at least one more than the longest way to a fault of mutants.txt."""

    def __str__(self) -> str:
        """The scope in words: who, what in any order and number, and what only so often."""
        flavours, endings = ", ".join(self.flavours), ", ".join(self.endings)
        verbs = [f"enqueue ({flavours})", "dequeue", f"finish ({endings})", *self.actions]
        verbs += [name for name in self.budget if name not in ("enqueue", "fail")]
        verbs += ["replay"] * self.calls
        often = ", ".join(f"{name} {count}" for name, count in self.budget.items() if count)
        who = f"{len(self.workers)} workers, {len(self.mids)} mids"
        return f"{who}; {', '.join(verbs)}, tick; at most: {often}"


class Hold:
    """The message that a worker believes it may run."""

    __slots__ = ("content", "mid", "token")

    def __init__(self, mid: str, token: str, content: str) -> None:
        self.mid, self.token, self.content = mid, token, content


class Record:
    """The world's knowledge about one mid."""

    def __init__(self) -> None:
        self.content = ""  # accepted, not superseded, neither done nor dead nor cancelled
        self.fresh = False  # that content has not been handed out: it starts a generation
        self.not_before = self.deduped_till = 0
        self.generation = self.token = ""  # of this generation; of its holder, "" when nobody's
        self.until = self.attempts = self.crashes = self.unknowns = 0
        self.lock: int | str = ""  # of the run at hand, as dedupe
        self.dedupe: int | str = ""  # '@' and a moment: until then, whenever the run ends
        self.latest = 0  # of a burst: newer content can't move the waiting message beyond this
        self.cancelled = False  # a cancelled run keeps the mid taken, not a dedupe
        self.newer_options: tuple[int | str, int | str] = ("", "")  # of what is fresh
        self.died = 0  # times, of which no message tells yet
        self.checkpoint = ""  # for the next attempt at this content
        self.failed = ""  # the latest attempt at it that was retried, 0x1f, its traceback
        self.report = ""  # the newest of an attempt at it
        self.dead: tuple[tuple[str, str, str], ...] = ()  # dead id, content, key
        self.ended = ""  # how, in this call: done, dead, cancelled
        self.key, self.newer_key = "", ""  # of the run at hand, of what is fresh
        self.lined = False  # it waits at the head of its line, and the line with it
        # Its place among those that wait in the line of its key and never left it, 0 = none; and among those of an
        # ordered key that are neither done nor dead.
        self.turn = self.order = 0

    def copy(self) -> Record:
        twin = Record.__new__(Record)
        twin.__dict__.update(self.__dict__)
        return twin

    def accept(self, content: str, not_before: int) -> None:
        self.content, self.fresh, self.not_before = content, True, not_before

    def settle(self, ended: str = "") -> None:
        """Settle all dues."""
        self.ended = ended
        self.content, self.fresh, self.not_before = "", False, 0
        self.attempts = self.crashes = self.unknowns = 0
        self.generation, self.lock, self.dedupe, self.newer_options = "", "", "", ("", "")
        self.checkpoint = self.failed = self.report = ""
        self.latest = 0
        self.key, self.newer_key, self.turn, self.order, self.lined = "", "", 0, 0, False

    def waits(self, now: int) -> bool:
        """Whether it could be handed out, but for its key."""
        return (
            bool(self.content) and not self.token and max(self.not_before, self.deduped_till) <= now
        )

    def text(self, now: int) -> str:
        until = max(0, self.until - now) if self.token else ""
        waits = (
            max(0, self.not_before - now),
            max(0, self.deduped_till - now),
            max(0, self.latest - now),
        )
        dedupe, (lock, newer_dedupe) = relative(self.dedupe, now), self.newer_options
        newer_options = lock, relative(newer_dedupe, now)
        return (
            f"{self.content} {self.fresh} {waits} {until} {self.generation} {self.attempts} "
            f"{self.crashes} {self.unknowns} {self.lock} {dedupe} {newer_options} {self.dead} "
            f"{self.cancelled} {self.checkpoint} {self.failed} {self.report} {self.died} {self.key} {self.newer_key} "
            f"{self.turn} {self.order} {self.lined}"
        )


def relative(dedupe: int | str, now: int) -> int | str:
    """A dedupe until a moment, by the time that is left."""
    return f"@{max(0, int(dedupe[1:]) - now)}" if isinstance(dedupe, str) and dedupe else dedupe


@dataclass(slots=True)
class Call:
    """The last numbered call of a caller, to be repeated."""

    script: str
    number: int
    args: tuple[str | int, ...]
    reply: tuple[object, ...]


ENDLESS = 10**14
#: How long ends are remembered.
REMEMBER_MS = 60_000


@dataclass(slots=True)
class World:
    """The whole state but for Redis."""

    scope: Scope
    now: int
    records: dict[str, Record]
    holds: dict[str, tuple[Hold, ...]]
    left: dict[str, int]
    numbers: dict[str, int]
    ncontents: int = 0
    pause_ends: int = 0
    """When the pause of the queue ends; 0 without one, ENDLESS where only resume ends it."""
    calls: dict[str, Call] = field(default_factory=dict)
    last_tick: int = -1
    """Of the schedule: -1 while nobody has asked for it; with the mid of its last run, and the ticks that had one."""
    last_run: str = ""
    ticked: tuple[int, ...] = ()
    held_keys: dict[str, int] = field(default_factory=dict)
    """Until when nothing of a key may be handed out."""
    passed: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each key that may go: how often others went since it might."""
    binned: dict[str, Record] = field(default_factory=dict)
    """What an operation took out of those that wait."""
    binned_dead: dict[str, tuple[str, str, str, bool]] = field(default_factory=dict)
    """Of the dead that it took out or revived: which of the two, content, key, whether it was the newest of its mid."""
    edited: dict[str, tuple[Record, str]] = field(default_factory=dict)
    """What it edited: as it was, and the new content."""
    behind: int = 0
    """How far the server's clock has stepped back behind `now`, the time that scripts go by."""
    up_to: int = -1
    """Of a map: the number of the last member that was accepted."""
    named: str = ""
    """Which worker has the name that all of them claim, and the newest entry under it."""
    beat: str = ""

    def next_content(self) -> str:
        """The content of one more call."""
        self.ncontents += 1
        name = f"c{self.ncontents}"
        return f'{{"remember_ms":{REMEMBER_MS},"{name}":0}}' if self.scope.remembers else name

    @property
    def is_paused(self) -> bool:
        return self.pause_ends > self.now

    @property
    def clock(self) -> int:
        return self.now - self.behind

    def copy(self) -> World:
        records = {mid: record.copy() for mid, record in self.records.items()}
        return World(
            self.scope, self.now, records, dict(self.holds), dict(self.left), dict(self.numbers),
            self.ncontents, self.pause_ends, dict(self.calls), self.last_tick, self.last_run, self.ticked,
            dict(self.held_keys), {key: dict(others) for key, others in self.passed.items()},
            dict(self.binned), dict(self.binned_dead), dict(self.edited), self.behind, self.up_to,
            self.named, self.beat,
        )  # fmt: skip

    def text(self) -> str:
        """For the canonical state: times relative to now, and of a hold only whether it is good."""
        parts = [record.text(self.now) for record in self.records.values()]
        parts += sorted(map(self.situation, self.holds))
        pause = "" if self.pause_ends == ENDLESS else max(0, self.pause_ends - self.now)
        parts.append(f"{pause} {self.behind} {self.up_to} {self.named} {self.beat}")
        parts += [f"{mid} out: {one.text(self.now)}" for mid, one in sorted(self.binned.items())]
        parts += [
            f"{mid} was: {r.text(self.now)} {c}" for mid, (r, c) in sorted(self.edited.items())
        ]
        parts += [f"{one} out: {what}" for one, what in sorted(self.binned_dead.items())]
        if self.scope.ticks:
            coming = [max(0, tick_ms - self.now) for tick_ms in self.tick_times()]
            behind = sum(tick_ms <= self.last_tick for tick_ms in self.tick_times())
            parts.append(f"{coming} {behind} {self.last_tick < 0} {self.last_run} {self.ticked}")
        held = {key: at - self.now for key, at in self.held_keys.items() if at > self.now}
        passed = sorted((key, sorted(others.items())) for key, others in self.passed.items())
        parts.append(f"{sorted(held.items())} {passed}")
        return "\n".join(parts)

    def keys_that_may_go(self) -> set[str]:
        """Whose messages wait for nothing but their turn; '': messages without a key."""
        one_at_a_time = any(flavour.ordered for flavour in self.scope.flavours.values())
        most = 1 if one_at_a_time else int(self.scope.rule[0] or 0) if self.scope.rule else 0
        running = [record.key for record in self.records.values() if record.token]
        waiting = {
            record.newer_key if record.fresh else record.key
            for record in self.records.values()
            if record.waits(self.now)
        }
        return {
            key
            for key in waiting
            if not key
            or (self.now >= self.held_keys.get(key, 0) and (not most or running.count(key) < most))
        }

    def tick_times(self) -> list[int]:
        """When the ticks of the schedule are."""
        return [START + tick for tick in self.scope.ticks]

    def situation(self, worker: str) -> str:
        """The facts that distinguish a worker: workers are alike, as long as nobody asks for their calls again."""
        held = self.holds[worker]
        return worker[: self.scope.calls] + " ".join(
            sorted(h.mid + "-*"[self.records[h.mid].token == h.token] for h in held)
        )


START = 1_000_000_000


def begin(scope: Scope) -> World:
    return World(
        scope,
        now=START,
        records={mid: Record() for mid in scope.mids},
        holds=dict.fromkeys(scope.workers, ()),
        left=dict(scope.budget),
        numbers={},
    )
