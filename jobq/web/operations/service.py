"""The operations of a dashboard, as called by its pages and its API."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b

from msgspec.structs import replace

from jobq.client.connection import Client
from jobq.client.names import checked_name
from jobq.durations import counted
from jobq.errors import ConfigError, JobqError
from jobq.queue.audit_log import Act, AuditLog, Performed, Phase, new_op
from jobq.web.access.identity import Identity
from jobq.web.contents import Contents
from jobq.web.filters import parse
from jobq.web.operations.applying import Applier
from jobq.web.operations.freezing import Freezer
from jobq.web.operations.store import OperationState, OperationStore
from jobq.web.operations.verbs import BulkVerb, verb_of
from jobq.web.site import Site

log = logging.getLogger("jobq.web")
#: Maximum number of concurrent operations per process, and of ids in an operation.
MAX_AT_ONCE, MAX_IDS = 4, 1_000
MAX_SPREAD_S = 86_400
#: Number of latest operations to search for a user's operation, and how long they are reused, in seconds.
MAX_RECENT, RECENT_S = 20, 2.0
#: Phases in which some process works on the operation.
_BUSY = ("freezing", "applying", "undoing")


def operations_of(site: Site) -> Operations:
    """Return the operations of a dashboard."""
    return site.part(Operations, lambda site: Operations(site.client, site.operate))


class NotAllowedError(JobqError):
    """The user's role doesn't allow this action."""


@dataclass(frozen=True)
class OperationView:
    """An operation as a page shows it.

    Attributes:
        is_live: Whether a process is working on the operation.
        left_ms: Time until the operation is deleted.
    """

    state: OperationState
    is_live: bool
    left_ms: int

    @property
    def verb(self) -> BulkVerb:
        """The operation's verb."""
        return verb_of(self.state.verb)

    @property
    def is_lost(self) -> bool:
        """Return whether the process that worked on the operation has ended."""
        return self.state.phase in _BUSY and not self.is_live

    @property
    def is_at_work(self) -> bool:
        """Return whether a process applies or undoes the operation now."""
        return self.is_live and self.state.phase in ("applying", "undoing")

    @property
    def worked_on(self) -> int:
        """Number of processed messages."""
        return sum(self.state.results.values())

    @property
    def may_apply(self) -> bool:
        """Return whether the operation can be applied or continued."""
        again = self.state.phase in ("stopped", "failed") and not self.state.undone
        lost = self.is_lost and self.state.phase == "applying"
        frozen = self.state.nchunks > 0 and self.worked_on < self.state.number
        return frozen and (self.state.phase == "previewed" or again or lost)

    @property
    def may_undo(self) -> bool:
        """Return whether the operation can be undone now."""
        if self.state.why_no_undo or not self.state.results.get("applied"):
            return False
        return not self.is_live and self.state.phase not in ("undone", "freezing", "previewed")

    @property
    def confirmation(self) -> str:
        """The text that a user must type before the operation is applied; '' if the operation can be undone."""
        if not self.state.why_no_undo:
            return ""
        names = [name for name, _ in self.state.queues]
        return names[0] if len(names) == 1 else str(self.state.number)


class Operations:
    """Creates, applies and undoes operations in threads.

    Attributes:
        reads: Client that lists messages.
        operate: Client that changes messages.
    """

    def __init__(
        self, reads: Client, operate: Client, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self.reads, self.operate, self.pause = reads, operate, pause
        self.store, self.shown = OperationStore(operate), OperationStore(reads)
        self.log = AuditLog(operate)
        self._recent: tuple[float, list[OperationView]] = 0.0, []
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    def create(
        self, who: Identity, verb: str, contents: Contents, *, filter: str = "",
        ids: Sequence[tuple[str, str]] | None = None, op: str = "",
    ) -> str:  # fmt: skip
        """Create an operation on the messages that match `filter`, or on the messages in `ids`. Return the operation's
        id.

        Args:
            ids: Queue and message id, or dead id for actions on dead messages.
            op: Id of the operation; a new id by default.
        """
        chosen = self.allowed(who, verb, filter)
        asked = parse(filter, may_see_arguments=who.arguments, keys=chosen.keys)
        if ids is not None:
            if not 0 < len(ids) <= MAX_IDS:
                raise ConfigError(f"{len(ids):,} messages were chosen; choose 1 to {MAX_IDS:,}")
            ids = sorted({(checked_name("queue", queue), id_) for queue, id_ in ids})
        state = OperationState(
            id=op or new_op(), verb=verb, by=who.name, role=who.role.word, filter=asked.text if ids is None else "",
            chosen=digest_of(ids), created_at=self.operate.clock_ms(),
        )  # fmt: skip

        def work(token: str) -> None:
            freezer = Freezer(self.store, self.reads, contents, state, self._closing.is_set, token)
            if ids is None:
                freezer.matching(asked)
            else:
                freezer.chosen(ids)

        self._start(state, work, lambda: self._add(state))
        return state.id

    def view(self, op: str) -> OperationView | None:
        """Return an operation; None if it doesn't exist or was deleted."""
        state = self.shown.load(op)
        if state is None:
            return None
        return OperationView(state, self.shown.is_locked(op), self.shown.left_ms(op))

    def listed(self) -> list[OperationState]:
        """Return the newest operations."""
        return self.shown.listed()

    def newest_of(self, who: Identity) -> OperationView | None:
        """Return the latest operation that this user applied, if it is running or can be undone.

        The result is reused for two seconds, because every page needs it.
        """
        now = time.monotonic()
        until, views = self._recent
        if now >= until:
            views = [OperationView(*facts) for facts in self.shown.recent(MAX_RECENT)]
            self._recent = now + RECENT_S, views
        mine = (view for view in views if view.state.applied_by == who.name)
        return next((view for view in mine if view.is_at_work or view.may_undo), None)

    def apply(
        self, op: str, who: Identity, *, spread_s: float = 0, confirmed: str = ""
    ) -> OperationView:
        """Apply or continue an operation."""
        view = self._known(op)
        self.allowed(who, view.state.verb, f"op:{op}")
        if not view.may_apply:
            left = counted(view.state.number - view.worked_on, "message")
            raise ConfigError(
                f"the operation is {view.state.phase}, with {left} left, so it can't be applied now"
            )
        if view.confirmation and confirmed.strip() != view.confirmation:
            raise ConfigError(f"this can't be undone; type {view.confirmation} to confirm it")
        if not 0 <= spread_s <= MAX_SPREAD_S:
            raise ConfigError(
                f"spread={spread_s!r} is out of range; it must be between 0 s and a day"
            )
        state, former = view.state, replace(view.state)
        if not state.began_at:
            state.began_at = self.operate.clock_ms()
            state.spread_ms = round(spread_s * 1000) if state.verb == "revive" else 0
        state.phase, state.applied_by, state.error, state.stopped_by = "applying", who.name, "", ""

        def work(token: str) -> None:
            with self._audited(state, who) as performed:
                Applier(self.store, state, self._closing.is_set, self.pause, token).apply()
                performed.set(number=state.results.get("applied", 0), note=_note(state))

        self._start(state, work, lambda: self._begin(state, former))
        return OperationView(state, True, view.left_ms)

    def undo(self, op: str, who: Identity) -> OperationView:
        """Undo an operation."""
        view = self._known(op)
        self.allowed(who, view.state.verb, f"op:{op}")
        if not view.may_undo:
            raise ConfigError(
                f"this operation can't be undone now. {view.state.why_no_undo}".rstrip()
            )
        state, former = view.state, replace(view.state)
        state.phase, state.error, state.stopped_by = "undoing", "", ""

        def work(token: str) -> None:
            with self._audited(state, who, "undone") as performed:
                Applier(self.store, state, self._closing.is_set, self.pause, token).undo()
                performed.set(number=state.undone.get("restored", 0), note=_note(state))

        self._start(state, work, lambda: self._begin(state, former))
        return OperationView(state, True, view.left_ms)

    def stop(self, op: str, who: Identity) -> None:
        """Stop an operation after the current chunk of messages."""
        view = self._known(op)
        self.allowed(who, view.state.verb, f"op:{op}")
        if view.is_live and view.state.phase in ("applying", "undoing"):
            self.operate.command("HSET", self.store.key(op), "stop", who.name)

    def allowed(self, who: Identity, verb: str, what: str) -> BulkVerb:
        """Return the action `verb` if this user may use it. Otherwise, write to the audit log and raise
        NotAllowedError.
        """
        chosen = verb_of(verb)
        if not who.may(chosen.role):
            why = (
                f"{chosen.label} needs the role {chosen.role.word}; {who.name} has {who.role.word}"
            )
            self.refused(who, verb, what, why)
            raise NotAllowedError(why)
        return chosen

    def refused(self, who: Identity, verb: str, what: str, why: str) -> None:
        """Record a rejected action in the audit log. If the log can't be written, only log a warning."""
        act = Act(who.name, who.role.word, verb, "", what, note=why, op=new_op())
        try:
            self.log.append(act, "refused")
        except JobqError as error:
            log.warning("not written to the audit log: %s", error)

    def wait(self, seconds: float = 120.0) -> None:
        """Wait until this process has finished its operations."""
        for thread in list(self._threads):
            thread.join(seconds)

    def close(self) -> None:
        """Stop the operations that run in this process. Another process can continue them."""
        self._closing.set()
        self.wait(10.0)

    def _known(self, op: str) -> OperationView:
        view = self.view(op)
        if view is None:
            raise ConfigError(f"there is no operation {op!r:.80}; operations are kept for an hour")
        return view

    def _add(self, state: OperationState) -> None:
        if self.store.load(state.id) is not None:
            raise ConfigError("there is already an operation with this id")
        self.store.add(state)

    def _begin(self, state: OperationState, former: OperationState) -> None:
        """Store an operation's new state before this process starts to work on it.

        Args:
            former: The state that the user saw. Raises ConfigError if the state has changed.
        """
        if self.store.load(state.id) != former:
            raise ConfigError("another user has changed this operation; check its results")
        self.operate.command("HDEL", self.store.key(state.id), "stop")
        self.store.save(state)

    def _audited(
        self, state: OperationState, who: Identity, ending: Phase = "done"
    ) -> AbstractContextManager[Performed]:
        queues = ",".join(name for name, _ in state.queues)
        what = state.filter or f"{state.number} chosen messages"
        act = Act(who.name, who.role.word, state.verb, queues, what, state.number, state.id)
        return self.log.performing(act, ending=ending)

    def _start(
        self, state: OperationState, work: Callable[[str], None], begin: Callable[[], object]
    ) -> None:
        with self._starting:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) >= MAX_AT_ONCE:
                raise ConfigError(
                    f"this dashboard is already running {MAX_AT_ONCE} operations; wait until one has finished"
                )
            token = self.store.lock(state.id)
            if not token:
                raise ConfigError("another process is already working on this operation")
            try:
                begin()
                thread = threading.Thread(
                    target=self._work,
                    args=(state, work, token),
                    name=f"jobq-{state.id}",
                    daemon=True,
                )
                thread.start()
            except BaseException:
                self.store.unlock(state.id, token)
                raise
            self._threads.append(thread)
            self._recent = 0.0, []

    def _work(self, state: OperationState, work: Callable[[str], None], token: str) -> None:
        try:
            work(token)
        except InterruptedError:
            log.info("left operation %s to another process", state.id)
        except Exception as error:
            if not isinstance(error, JobqError):
                log.exception("operation %s failed", state.id)
            self._failed(state, str(error) or type(error).__name__)
        finally:
            try:
                self.store.unlock(state.id, token)
            except JobqError as error:
                log.warning(
                    "could not unlock operation %s, so it stays locked for a while: %s",
                    state.id,
                    error,
                )
            self._recent = 0.0, []

    def _failed(self, state: OperationState, why: str) -> None:
        try:
            state.phase, state.error = "failed", why[:2000]
            self.store.save(state)
        except JobqError as error:
            log.warning(
                "operation %s failed: %s; then its state could not be saved: %s",
                state.id,
                why,
                error,
            )


def digest_of(ids: Sequence[tuple[str, str]] | None) -> str:
    """Return a digest of the chosen messages, by which a repeated request is recognized; '' without chosen messages."""
    if ids is None:
        return ""
    text = repr(sorted(set(ids))).encode("utf-8", "backslashreplace")
    return blake2b(text, digest_size=8).hexdigest()


def _note(state: OperationState) -> str:
    """Summarize an operation's results for the audit log."""
    counts = state.undone if state.phase == "undone" or state.undone else state.results
    parts = [f"{number:,} {word}" for word, number in counts.items()]
    stopped = [f"stopped by {state.stopped_by}"] if state.stopped_by else []
    spread = [f"spread over {state.spread_ms // 1000:,} s"] if state.spread_ms else []
    return ", ".join([*stopped, *parts, *spread])
