"""Imports point down the layers, and siblings of a layer know nothing of one another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobq

PACKAGE = Path(__file__).parents[1] / "jobq"
#: Layer by first part of the name; modules of the top package are layers of their own.
LAYERS = {
    "durations": 0, "variables": 0, "errors": 0, "extras": 0, "config": 0, "events": 0,
    "engine": 1, "jobs": 2,
    "worker": 3, "compat": 3, "observe": 3,
    "pipeline": 4, "chaos": 4, "web": 4, "testing": 4,
    "cli": 5, "__main__": 6,
}  # fmt: skip
#: Layer 0 by itself: durations, variables and extras know nothing, errors take them, the others may raise errors.
WORDS = ["durations", "variables", "errors", "extras", "events", "config"]


def imports(path: Path) -> Iterator[str]:
    """Every module of jobq that a file names, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
    [("worker", "jobq.observe.log"), ("observe", "jobq.worker.run"), ("engine", "jobq.jobs.job"),
     ("jobs", "jobq.cli"), ("errors", "jobq.config"), ("engine", "jobq"), ("cli", "jobq.util"),
     ("compat", "jobq.worker.run")],
)  # fmt: skip
def test_import_is_refused_when_it_goes_up_sideways_or_nowhere(here, name):
    assert judged(here, name)


#: What a protocol may know beside words, engine and itself: what Ruby pushed becomes calls of jobs.
ALSO = {"resque": ("jobs",)}


def test_each_compat_protocol_knows_words_engine_and_itself():
    wrong = []
    for path in (path for path in files() if part(path) == "compat"):
        own = path.relative_to(PACKAGE).parts[1].removesuffix(".py")
        for name in imports(path):
            there = name.split(".")[1:3]
            fine = not name.startswith("jobq.") or there[0] in (
                *WORDS,
                "engine",
                *ALSO.get(own, ()),
            )
            if not fine and there != ["compat", own]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_exported_name_counts_as_the_module_that_it_comes_from():
    assert home("Queue") == "jobq.engine.queue"
    assert home("retry") == "jobq.jobs.retry"
    assert home("engine") == "jobq.engine"


def test_the_pipeline_to_the_server_is_the_engine_alone():
    """Only the engine, and who diagnoses or waits on a connection it was given, speaks redis-py."""
    users = {
        str(path.relative_to(PACKAGE))
        for path in files()
        if any(name.split(".")[0] == "redis" for name in imports(path)) and part(path) != "engine"
    }
    assert users == {
        "compat/reliable/ticket.py", "compat/topic/waiting.py", "jobs/waiting.py", "worker/idle.py",
        "worker/async_child.py",
    }  # fmt: skip
