"""Name -> job, filled by `@job` when modules load. A message only ever finds what is in here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobq.errors import ConfigError, JobAlreadyRegisteredError, JobNotFoundError
from jobq.jobs.codec import MAX_NAME
from jobq.jobs.middleware import Middlewares

if TYPE_CHECKING:
    from jobq.jobs.job import Job


class Registry:
    """Jobs by name, and middleware for them alone, inside the middleware for all."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job[..., Any]] = {}
        self.middleware = Middlewares()
        self.find = self._jobs.get

    def add(self, job: Job[..., Any]) -> None:
        """Register; the same function again, as after a reload, replaces what it was."""
        known = self._jobs.get(job.name)
        if known is not None and _origin(known.function) != _origin(job.function):
            raise JobAlreadyRegisteredError(
                f"job {job.name!r} is registered already, by {_place(known.function)}; "
                f"give the one of {_place(job.function)} another name=…"
            )
        self._jobs[job.name] = job

    def get(self, name: str) -> Job[..., Any]:
        """The job of this name, or JobNotFoundError."""
        job = self._jobs.get(name)
        if job is None:
            raise JobNotFoundError(f"no job {name!r:.200} here; is its module in --import?")
        return job

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._jobs)

    def __contains__(self, name: object) -> bool:
        return name in self._jobs

    def __iter__(self) -> Iterator[Job[..., Any]]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)


#: Where `@job` registers unless it is given another.
default_registry = Registry()


def job_name(function: Callable[..., Any]) -> str:
    """`module.function`. In a script, `__main__` stands for what --import would name it by."""
    module = function.__module__
    if module == "__main__":
        module = _main_module()
    return f"{module}.{function.__qualname__}"


def checked_job_name(name: str) -> str:
    """`name` itself, or ConfigError."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_NAME
        or not name.isprintable()
        or " " in name
    ):
        raise ConfigError(
            f"job name {name!r:.220} can't be used; take 1-{MAX_NAME} printable characters without spaces"
        )
    return name


def _main_module() -> str:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name)
    path = getattr(main, "__file__", None)
    return Path(path).stem if path else "__main__"


def _origin(function: Callable[..., Any]) -> tuple[Any, ...]:
    code = getattr(function, "__code__", None)
    # Lambdas all have one name; functions may move to another line between two loads.
    line = getattr(code, "co_firstlineno", None) if function.__name__ == "<lambda>" else None
    return getattr(code, "co_filename", None), function.__qualname__, line


def _place(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"{function.__module__}.{function.__qualname__}{where}"
