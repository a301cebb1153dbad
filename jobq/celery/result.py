"""`AsyncResult`: a task's state and result, in Celery's terms."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from jobq.celery import shared, states
from jobq.client.connection import default_client
from jobq.client.names import base_of
from jobq.errors import ConfigError, JobFailedError, JobqError, JobTimeout, ResultNotStoredError
from jobq.flows.run import FlowRun
from jobq.jobs.options import JobSettings
from jobq.jobs.queues import queue_of
from jobq.jobs.results import Receipt
from jobq.jobs.states import State
from jobq.queue.directory import queue_names
from jobq.queue.queue import alone
from jobq.queue.types import DAY_S

#: Prefix of the ids of flow steps.
FLOW = "flow/"
_SETTINGS = JobSettings(result_ttl=DAY_S)
_FAILED = frozenset(("failed", "skipped"))
#: The class named in an error's text: `ValueError: no`, `add 01ab is dead: shop.errors.Refused: no`.
_CLASS = re.compile(r"(?:^|.*? is (?:dead|failed): )([A-Za-z_][\w.]*)(?=: | \(|$)", re.MULTILINE)
_RUNS_CODE = {"__new__", "__init_subclass__"}


class AsyncResult:
    """The state and result of a task, which is a message or a step of a flow."""

    def __new__(cls, id: str, *args: Any, **kwargs: Any) -> Any:
        """Return a FlowResult if the id is the id of a flow step."""
        return object.__new__(FlowResult if id.startswith(FLOW) else cls)

    def __init__(self, id: str, task_name: str | None = None, **_: Any) -> None:
        self.id = self.task_id = id
        self.name = task_name
        self._revoked = False

    @property
    def state(self) -> str:
        """Return PENDING (or unknown), STARTED, RETRY, SUCCESS, FAILURE, REVOKED or a state from `update_state`."""
        return self._seen()[0]

    status = state

    @property
    def info(self) -> Any:
        """Return the task's return value, its error, or the `meta` of `update_state`."""
        return self._seen()[1]

    result = info

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> Any:
        """Wait for the task and return its result; raise TimeoutError after `timeout` seconds.

        If the task failed, raise JobFailedError. If the class of the task's exception is imported here, the error is
        also an instance of that class.
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
        """Return whether the task has ended."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Return whether the task succeeded."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Return whether the task failed."""
        return self.state == states.FAILURE

    @property
    def traceback(self) -> str | None:
        """Return the failed task's error with its traceback, or None."""
        dead = [
            row
            for receipt in self._receipts()
            for row in receipt.bound_queue.admin.dead(mid=self.id)
        ]
        return str(dead[0].reason) if dead else None

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel the task. A running task stops when its worker next renews the lease."""
        self._revoked = any(receipt.cancel() for receipt in self._receipts()) or self._revoked

    def forget(self) -> None:
        """Delete the result."""
        for queue in alone(default_client(), [receipt.queue for receipt in self._receipts()]):
            queue.client.command("DEL", queue.result_key(self.id))

    def _receipts(self) -> list[Receipt[Any]]:
        """Return a receipt for each queue that may have the task, the task's declared queue first."""
        task = shared.tasks.get(self.name or "")
        queues = [task.job.queue] if task is not None else []
        listed = [base_of(name) for name in queue_names(default_client())]
        names = dict.fromkeys([*queues, *listed])
        return [
            Receipt(self.id, "exists", "", self.name or self.id, queue_of(name, None), _SETTINGS)
            for name in names
        ]

    def _known(self) -> tuple[Receipt[Any], State] | None:
        """Return the receipt and the state from the queue that knows the task, or None."""
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
                f"no queue has a task or a result with the id {self.id!r}; to keep results, set result_backend on "
                "the app, and leave out ignore_result=True"
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
        """Return the failed step's error as text, or None."""
        info = self.info
        return str(info) if isinstance(info, JobFailedError) else None

    def forget(self) -> None:
        """Do nothing, because all results of a flow are deleted some days after the flow's end."""

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
            # As in Celery, a skipped step fails with the error of the failed step before it.
            states_of = self.run.status().by_name.values()
            failed = [step.name for step in states_of if step.state == "failed"]
            return self.run.result([*failed, self.step][0], timeout)


class GroupResult(list[Any]):
    """The results of a group, in the order of its tasks."""

    def __init__(self, id: str, results: Sequence[Any]) -> None:
        super().__init__(results)
        self.id, self.results = id, self

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> list[Any]:
        """Wait for the tasks and return their results."""
        return [result.get(timeout, propagate) for result in self.results]

    join = get

    def ready(self) -> bool:
        """Return whether all tasks have ended."""
        return all(result.ready() for result in self.results)

    def successful(self) -> bool:
        """Return whether all tasks succeeded."""
        return all(result.successful() for result in self.results)

    def failed(self) -> bool:
        """Return whether any task failed."""
        return any(result.failed() for result in self.results)

    def waiting(self) -> bool:
        """Return whether any task hasn't ended."""
        return not self.ready()

    def completed_count(self) -> int:
        """Return the number of successful tasks."""
        return sum(result.successful() for result in self.results)

    def revoke(self, *_: Any, **__: Any) -> None:
        """Cancel all tasks."""
        for result in self.results:
            result.revoke()


class EagerResult(AsyncResult):
    """The result of a task that ran in this process."""

    def __init__(self, id: str, value: Any, state: str, error: BaseException | None = None) -> None:
        super().__init__(id)
        self._end = state, error if error is not None else value

    def __new__(cls, id: str, *args: Any, **kwargs: Any) -> Any:
        """Return an EagerResult, even if the id is the id of a flow's step."""
        return object.__new__(cls)

    def _seen(self) -> tuple[str, Any]:
        return self._end

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> Any:
        """Return the task's result, or raise the exception that the task raised."""
        if propagate and isinstance(self._end[1], BaseException):
            raise self._end[1]
        return self._end[1]

    def revoke(self, *_: Any, **__: Any) -> None:
        """Do nothing, because the task has ended."""


def of_class(error: JobqError) -> JobqError:
    """Return a failed task's error as an instance of both JobFailedError and the exception class named in the error's
    text.

    Only classes of imported modules are used, because a message must not cause an import. Classes that run Python code
    when they are instantiated or subclassed are skipped, because a message must not run that code.
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
    except TypeError:  # bases with incompatible memory layouts, or required arguments
        return error


def _loaded(name: str) -> type[BaseException] | None:
    """Return the exception class with this dotted name from builtins or a loaded module, or None."""
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
    """Return the state and the `meta` that `update_state` stored as a progress note, or None for any other note."""
    try:
        word, meta = json.loads(note)
    except ValueError:
        return None
    return str(word), meta
