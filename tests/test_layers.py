"""Imports point down the layers, and siblings of a layer know nothing of one another."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobq
from bench import sources

PACKAGE = Path(__file__).parents[1] / "jobq"
#: Layer by first part of the name; modules of the top package are layers of their own.
LAYERS = {
    "habits": 0,
    "durations": 0, "formats": 0, "variables": 0, "errors": 0, "extras": 0, "cgroup": 0, "config": 0, "events": 0,
    "trust": 0, "records": 0,
    "client": 1, "queue": 2, "embedded": 2, "jobs": 3, "flows": 4,
    "worker": 5, "topics": 5, "protocols": 5, "observe": 5, "schedules": 5, "limits": 5, "outbox": 5, "migrate": 5,
    "pipeline": 6, "chaos": 6, "metrics": 6,
    "web": 7, "cli": 8, "testing": 8, "__main__": 9, "django": 9, "celery": 9,
}  # fmt: skip
#: What an owner must know first. It imports nothing of the rest, and runs without it (packaging/test_core.py).
CORE = {
    "habits", "durations", "formats", "variables", "errors", "extras", "cgroup", "config", "events", "trust",
    "records", "client", "queue", "embedded", "jobs", "worker", "limits", "schedules",
}  # fmt: skip
#: The packages of others that the core imports -> why it can't do without.
CORE_NEEDS = {
    "redis": "connections and the errors of servers",
    "hiredis": "the parser of replies, and the packer of requests",
    "msgspec": "calls, results and records as JSON, checked against types",
    "cronsim": "reads the cron expressions of schedules",
}
#: What a setting alone makes the core import. Without the package, the error says how to install it.
CORE_MAY_NEED = {"cryptography": "JOBQ_CODEC=encrypt"}
#: Base requirements that the core doesn't import -> who needs them.
REST_NEEDS = {
    "click": "the command line",
    "python-json-logger": "the log of `jobq worker`",
    "tzdata": "zoneinfo, on machines that have no time zones of their own",
}
#: Layer 0 by itself: durations, formats, variables and extras know nothing, errors take them, the others raise them.
WORDS = [
    "habits", "durations", "formats", "variables", "errors", "extras", "cgroup", "trust", "events", "records", "config",
]  # fmt: skip


def imports(path: Path) -> Iterator[str]:
    """Every module of jobq that a file names, wherever in the file."""
    for node in sources.nodes(path, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "jobq":
                yield from (home(alias.name) for alias in node.names)
            else:
                yield node.module or ""


def home(name: str) -> str:
    """The module that `from jobq import name` loads: what the package exports lives in its layers."""
    return jobq._HOME.get(name) or jobq._MODULES.get(name) or f"jobq.{name}"


def part(path: Path) -> str:
    """The layer's package or module that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if part(path) != "__init__"]


def test_every_package_has_a_layer():
    assert {part(path) for path in files()} <= set(LAYERS)


def judged(here: str, name: str) -> str:
    """What is wrong with a file of `here` importing `name`; empty when nothing is."""
    if name == "jobq":
        return "is the whole package; name what is needed of it"
    top, _, rest = name.partition(".")
    there = rest.split(".")[0]
    if top != "jobq" or there in (here, "__version__"):
        return ""
    if there not in LAYERS:
        return "has no layer"
    words = here in WORDS and there in WORDS and WORDS.index(there) < WORDS.index(here)
    return "" if words or LAYERS[there] < LAYERS[here] else "isn't below"


def test_imports_point_down():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}, which {fault}"
        for path in files()
        for name in imports(path)
        if (fault := judged(part(path), name))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("here", "name"),
    [("worker", "jobq.observe.log"), ("observe", "jobq.worker.run"), ("queue", "jobq.jobs.job"),
     ("jobs", "jobq.cli"), ("errors", "jobq.config"), ("queue", "jobq"), ("cli", "jobq.util"),
     ("topics", "jobq.worker.run"), ("client", "jobq.queue.admin"), ("flows", "jobq.worker.run")],
)  # fmt: skip
def test_import_is_refused_when_it_goes_up_sideways_or_nowhere(here, name):
    assert judged(here, name)


#: What a protocol may know beside the layers below and itself.
BELOW = (*WORDS, "client", "queue")
#: What Ruby pushed becomes calls of jobs.
ALSO = {"ruby": ("jobs",)}


def test_each_protocol_knows_the_layers_below_it_and_itself():
    wrong = []
    for path in (path for path in files() if part(path) in ("protocols", "topics")):
        home = path.relative_to(PACKAGE).parts[:-1]
        for name in imports(path):
            there = tuple(name.split(".")[1:3])
            below = not name.startswith("jobq.") or there[0] in (*BELOW, *ALSO.get(home[-1], ()))
            own = there[: len(home)] == home
            if not (below or own):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def outside(path: Path) -> set[str]:
    """The packages of others that a file imports, wherever in the file."""
    tops = {name.split(".")[0] for name in imports(path)}
    return tops - sys.stdlib_module_names - {"jobq", "__future__"}


def test_core_imports_nothing_of_the_rest():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files()
        if part(path) in CORE
        for name in imports(path)
        if name.startswith("jobq.") and name.split(".")[1] not in CORE | {"__version__"}
    ]
    assert not wrong, "\n".join(wrong)


def test_core_needs_the_packages_that_are_named_for_it_and_no_others():
    needed = set().union(*(outside(path) for path in files() if part(path) in CORE))
    assert needed - CORE_MAY_NEED.keys() == CORE_NEEDS.keys()


def test_base_requirements_are_those_of_the_core_and_those_that_say_who_needs_them():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    required = {re.match(r"[\w-]+", line)[0] for line in project["project"]["dependencies"]}
    assert required == CORE_NEEDS.keys() | REST_NEEDS.keys()


def test_exported_name_counts_as_the_module_that_it_comes_from():
    assert home("Queue") == "jobq.queue.queue"
    assert home("retry") == "jobq.jobs.retry"
    assert home("queue") == "jobq.queue"


#: Who speaks redis-py beside the client: who was given a connection to diagnose it or to wait on it.
REDIS_USERS = {
    "embedded/process.py", "embedded/watch.py", "queue/directory.py", "queue/doctor.py", "queue/durability.py",
}  # fmt: skip


def test_the_client_alone_speaks_redis_py():
    users = {
        str(path.relative_to(PACKAGE))
        for path in files()
        if any(name.split(".")[0] == "redis" for name in imports(path)) and part(path) != "client"
    }
    assert users == REDIS_USERS
