"""Every fault of Carmine's message queue, B1 to B26, has a regression test named after it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def by_fault() -> dict[int, list[ast.FunctionDef]]:
    """Number of the fault -> the tests named after it, wherever they are."""
    found: dict[int, list[ast.FunctionDef]] = {}
    for path in TESTS.rglob("test_carmine_faults_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = isinstance(node, ast.FunctionDef) and re.match(r"test_b(\d\d)_\w+", node.name)
            if name:
                found.setdefault(int(name[1]), []).append(node)
    return found


def test_every_fault_has_a_test_named_after_it():
    assert sorted(by_fault()) == list(range(1, 27))


def test_every_test_of_a_fault_says_the_fault_in_one_line():
    for tests in by_fault().values():
        for test in tests:
            assert ast.get_docstring(test), test.name
            assert len((ast.get_docstring(test) or "").splitlines()[0]) > 20, test.name
