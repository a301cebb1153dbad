"""Imports point down the layers, and siblings of a layer know nothing of one another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "jobq"
#: Layer by first part of the name; modules of the top package are layers of their own.
LAYERS = {
    "errors": 0, "config": 0, "events": 0,
    "engine": 1, "jobs": 2,
    "worker": 3, "compat": 3, "observe": 3,
    "pipeline": 4, "chaos": 4, "web": 4, "testing": 4,
    "cli": 5, "__main__": 6,
}  # fmt: skip
#: Layer 0 by itself: errors know nothing, the others may raise them.
WORDS = ["errors", "events", "config"]


def imports(path: Path) -> Iterator[str]:
    """Every module of jobq that a file names, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            if node.module == "jobq":
                yield from (f"jobq.{alias.name}" for alias in node.names)


def part(path: Path) -> str:
    """The layer's package or module that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if part(path) != "__init__"]


def test_every_package_has_a_layer():
    assert {part(path) for path in files()} <= set(LAYERS)


def test_imports_point_down():
    wrong = []
    for path in files():
        here = part(path)
        for name in imports(path):
            there = name.split(".")[1] if name.startswith("jobq.") else None
            if there not in LAYERS or there == here:
                continue
            below = LAYERS[there] < LAYERS[here]
            words = here in WORDS and there in WORDS and WORDS.index(there) < WORDS.index(here)
            if not (below or words):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_pipeline_to_the_server_is_the_engine_alone():
    """Only the engine, and who diagnoses or waits on a connection it was given, speaks redis-py."""
    users = {
        str(path.relative_to(PACKAGE))
        for path in files()
        if any(name.split(".")[0] == "redis" for name in imports(path)) and part(path) != "engine"
    }
    assert users == {"jobs/waiting.py", "worker/idle.py"}
