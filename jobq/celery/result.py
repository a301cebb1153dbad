"""`AsyncResult`: what became of a task, in Celery's words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from jobq.celery import shared, states
from jobq.client.connection import default_client
from jobq.errors import ConfigError, JobFailedError, JobqError, JobTimeout, ResultNotStoredError
from jobq.flows.run import FlowRun
from jobq.jobs.options import JobSettings
from jobq.jobs.queues import queue_of
from jobq.jobs.results import Receipt
from jobq.jobs.states import State
from jobq.queue.directory import queue_names
from jobq.queue.types import DAY_S

#: What the id of a step's result begins with.
FLOW = "flow/"
_SETTINGS = JobSettings(result_ttl=DAY_S)
_FAILED = frozenset(("failed", "skipped"))
#: The class that the text of an error names: `ValueError: no`, `add 01ab is dead: shop.errors.Refused: no`.
_CLASS = re.compile(r"(?:^|.*? is (?:dead|failed): )([A-Za-z_][\w.]*)(?=: | \(|$)", re.MULTILINE)
_RUNS_CODE = {"__new__", "__init_subclass__"}


class AsyncResult:
    """The task of this id: a message, or the last step of a flow."""

    def __new__(cls, id: str, *args: Any, **kwargs: Any) -> Any:
        """Return a FlowResult for the id of one."""
        return object.__new__(FlowResult if id.startswith(FLOW) else cls)

    def __init__(self, id: str, task_name: str | None = None, **_: Any) -> None:
        self.id = self.task_id = id
        self.name = task_name
        self._revoked = False

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE, REVOKED, or what `update_state` said; PENDING if it is unknown."""
        return self._seen()[0]

    status = state

    @property
    def info(self) -> Any:
        """What the task returned, its error, or the `meta` of `update_state`."""
        return self._seen()[1]

    result = info

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> Any:
        """What the task returned, waiting for it. TimeoutError when time is up.

        If it failed: JobFailedError, which is also of the exception's own class if a loaded module has that.
        """
        try:
            return self._value(timeout)
        except JobFailedError as error:
            failure = of_class(error)
            if propagate:
                raise failure from None
            return failure

    wait = get

    def ready(self) -> bool:
        """Whether it is over."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Whether it returned."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Whether it failed."""
        return self.state == states.FAILURE

    @property
    def traceback(self) -> str | None:
        """The reason of a failed task, with its traceback."""
        dead = [
            row
            for receipt in self._receipts()
            for row in receipt.bound_queue.admin.dead(mid=self.id)
        ]
        return str(dead[0].reason) if dead else None

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel it. A running task is stopped too, when its worker renews the lease."""
        self._revoked = any(receipt.cancel() for receipt in self._receipts()) or self._revoked

    def forget(self) -> None:
        """Delete the result."""
        for receipt in self._receipts():
            queue = receipt.bound_queue
            queue.client.command("DEL", queue.result_key(self.id))

    def _receipts(self) -> list[Receipt[Any]]:
        """A receipt for each queue that the task may be in, its own first."""
        task = shared.tasks.get(self.name or "")
        queues = [task.job.queue] if task is not None else []
        names = dict.fromkeys([*queues, *queue_names(default_client())])
        return [
            Receipt(self.id, "exists", "", self.name or self.id, queue_of(name, None), _SETTINGS)
            for name in names
        ]

    def _known(self) -> tuple[Receipt[Any], State] | None:
        """The receipt in the queue that has the task or remembers it, and its state; None if none does."""
        for receipt in self._receipts():
            state = receipt.state()
            if state.word != "unknown":
                return receipt, state
        return None

    def _seen(self) -> tuple[str, Any]:
        known = self._known()
        if known is None:
            return (states.REVOKED if self._revoked else states.PENDING), None
        receipt, state = known
        if state.word == "running" and state.progress and (said := custom(state.progress.note)):
            return said
        if state.word == "done":
            with suppress(ResultNotStoredError):
                return states.SUCCESS, receipt.result(timeout=5)
        failed = state.word in ("failed", "expired")
        return states.OF_JOBQ[state.word], of_class(JobFailedError(state.error)) if failed else None

    def _value(self, timeout: float | None) -> Any:
        known = self._known()
        if known is None:
            raise ConfigError(
                f"no queue has a task or a result of id {self.id!r}; results are kept for tasks of an app with a "
                "result_backend, unless ignore_result=True"
            )
        return known[0].result(timeout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"


class FlowResult(AsyncResult):
    """The result of one step of a flow."""

    def __init__(self, id: str, task_name: str | None = None, **_: Any) -> None:
        super().__init__(id, task_name)
        flow, _slash, self.step = id.removeprefix(FLOW).rpartition("/")
        self.run = FlowRun(*flow.split(":", 1))

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel the whole flow."""
        self.run.cancel()

    @property
    def traceback(self) -> str | None:
        """The error of the step."""
        info = self.info
        return str(info) if isinstance(info, JobFailedError) else None

    def forget(self) -> None:
        """Leave it: a flow is deleted whole, some days after its end."""

    def _seen(self) -> tuple[str, Any]:
        view = self.run.status()
        step = view.by_name[self.step]
        if step.state == "cancelled":
            return states.REVOKED, None
        if step.state in _FAILED or (view.state == "failed" and step.state != "done"):
            try:
                self._value(0.01)
            except JobqError as error:
                return states.FAILURE, of_class(error)
        if step.state == "done":
            with suppress(JobqError):
                return states.SUCCESS, self.run.result(self.step, timeout=5)
            return states.SUCCESS, None
        return (states.STARTED if step.state == "running" else states.PENDING), None

    def _value(self, timeout: float | None) -> Any:
        try:
            return self.run.result(self.step, timeout)
        except JobFailedError:
            # A step that was skipped fails, as in Celery, with the error of the one before it that failed.
            states_of = self.run.status().by_name.values()
            failed = [step.name for step in states_of if step.state == "failed"]
            return self.run.result([*failed, self.step][0], timeout)


class GroupResult(list[Any]):
    """The results of a group, in the order of its tasks."""

    def __init__(self, id: str, results: Sequence[Any]) -> None:
        super().__init__(results)
        self.id, self.results = id, self

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> list[Any]:
        """What the tasks returned."""
        return [result.get(timeout, propagate) for result in self.results]

    join = get

    def ready(self) -> bool:
        """Whether all are over."""
        return all(result.ready() for result in self.results)

    def successful(self) -> bool:
        """Whether all have returned."""
        return all(result.successful() for result in self.results)

    def failed(self) -> bool:
        """Whether any has failed."""
        return any(result.failed() for result in self.results)

    def waiting(self) -> bool:
        """Whether any is not over."""
        return not self.ready()

    def completed_count(self) -> int:
        """How many have returned."""
        return sum(result.successful() for result in self.results)

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel all of them."""
        for result in self.results:
            result.revoke()


class EagerResult(AsyncResult):
    """The result of a task that has run here."""

    def __init__(self, id: str, value: Any, state: str, error: BaseException | None = None) -> None:
        super().__init__(id)
        self._end = state, error if error is not None else value

    def __new__(cls, id: str, *args: Any, **kwargs: Any) -> Any:
        """Return one."""
        return object.__new__(cls)

    def _seen(self) -> tuple[str, Any]:
        return self._end

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> Any:
        """What the task returned; raises its own exception."""
        if propagate and isinstance(self._end[1], BaseException):
            raise self._end[1]
        return self._end[1]

    def revoke(self, *_: Any, **__: Any) -> None:
        """Leave it: the task has run."""


def of_class(error: JobqError) -> JobqError:
    """The error of a failed task as one that is also of the class which its text names.

    Only a class of a module that is loaded already serves: a message never imports anything. Nor does it run code of
    that class: one with code of its own for new objects or subclasses is left out.
    """
    name = _CLASS.search(str(error))
    kind = _loaded(name[1]) if name and isinstance(error, JobFailedError) else None
    if kind is None or any(
        _RUNS_CODE & vars(base).keys() for base in kind.__mro__ if _is_python(base)
    ):
        return error
    own = {
        "__module__": kind.__module__,
        "__str__": Exception.__str__,
        "__init__": Exception.__init__,
    }
    try:
        return cast("JobqError", type(kind.__name__, (JobFailedError, kind), own)(str(error)))
    except TypeError:  # two bases whose objects differ in memory, or arguments that must be given
        return error


def _loaded(name: str) -> type[BaseException] | None:
    """The class of this dotted name in builtins or a loaded module."""
    parts = name.split(".")
    for end in range(len(parts) - 1, -1, -1):
        value: Any = sys.modules.get(".".join(parts[:end]) or "builtins")
        for part in parts[end:]:
            value = getattr(value, "__dict__", {}).get(part)
        if type(value) is type and issubclass(value, Exception | JobTimeout):
            return value
    return None


def _is_python(kind: type) -> bool:
    return bool(kind.__flags__ & 1 << 9)


def custom(note: str) -> tuple[str, Any] | None:
    """The state and the meta that `update_state` wrote into the note of a progress report."""
    try:
        word, meta = json.loads(note)
    except ValueError:
        return None
    return str(word), meta
