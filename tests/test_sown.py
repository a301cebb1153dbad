"""The faults that are sown: each kind, at its place, and the same sample at each call."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.sown import (
    KINDS,
    ROOT,
    SAMPLE,
    covering,
    faults_of_lua,
    faults_of_python,
    including,
    sample,
    told,
)

LUA = """#!lua
--[[
x: COST 1 + 1
]]
if n == 1 then return {'closed'} end
redis.call('HSET', KEYS[1], 'a', n + 1)
tick()
"""
PYTHON = """\
LIMIT = 5
def f(self, x):
    if x < 2:
        raise ValueError("é")
    self.first(x)
    self.second()
    self.x = x
"""


def test_lua_is_changed_once_when_a_fault_is_sown() -> None:
    sown = [(fault.kind, fault.line, fault.sown(LUA)) for fault in faults_of_lua("x.lua", LUA)]

    assert [(kind, line) for kind, line, _ in sown] == [
        ("inverted comparison", 5), ("dropped guard", 5), ("off by one", 6), ("dropped write", 6), ("swapped order", 6),
    ]  # fmt: skip
    for (_, _, text), part in zip(
        sown,
        (
            "if n ~= 1 then",
            "if false then return",
            "'a', n)",
            "end\n\ntick()",
            "tick()\nredis.call",
        ),
        strict=True,
    ):
        assert part in text


def test_python_is_changed_once_and_compiles_when_a_fault_is_sown() -> None:
    faults = list(faults_of_python("x.py", PYTHON))
    texts = {fault.kind: fault.sown(PYTHON) for fault in faults}

    assert Counter(fault.kind for fault in faults) == dict.fromkeys(KINDS, 1) | {"dropped write": 3}
    assert "if x >= 2:" in texts["inverted comparison"]
    assert "if x < 3:" in texts["off by one"]
    assert "if False:" in texts["dropped guard"]
    assert "self.second()\n    self.first(x)\n" in texts["swapped order"]
    assert {fault.unit for fault in faults} == {"x.py:2"}


@pytest.mark.long
def test_sample_is_the_same_and_compiles_when_it_is_drawn_again() -> None:
    faults = sample()

    assert faults == sample()
    assert Counter(fault.kind for fault in faults) == dict.fromkeys(KINDS, SAMPLE // len(KINDS))
    for fault in faults:
        source = (ROOT / fault.path).read_text(encoding="utf-8")
        assert fault.sown(source) != source
        if fault.path.endswith(".py"):
            ast.parse(fault.sown(source))


@pytest.mark.parametrize(
    ("path", "script"), [("lua/queue/clear.lua", "clear"), ("lua/shared/_call.lua", "enqueue")]
)
def test_scripts_are_listed_when_a_file_is_part_of_them(path: str, script: str) -> None:
    assert script in including(path)


def test_tests_are_chosen_when_they_run_the_changed_function_or_script() -> None:
    lua, python = (
        next(faults_of_lua("lua/queue/clear.lua", LUA)),
        next(faults_of_python("x.py", PYTHON)),
    )
    ran = {
        "both": ["lua:clear", "x.py:2"],
        "python": ["x.py:2"],
        "none": ["x.py:9"],
        "mutant": ["x.py:2"],
    }

    assert covering(lua, ran) == ["both"]
    assert covering(python, ran) == ["python", "both"]
    near = "tests/queue/test_x.py::test_y"
    assert covering(lua, {**ran, near: ["lua:clear", "x.py:2", "x.py:3"]}) == [near, "both"]


@pytest.mark.parametrize(
    ("code", "output", "errors", "verdict"),
    [
        (0, "3 passed in 1 s", "", "survived 3 tests"),
        (1, "3 passed in 1 s", "a socket is open", "survived 3 tests"),
        (1, "FAILED tests/x.py::y - z\n1 failed, 3 passed", "", "killed by tests/x.py::y"),
        (2, "", "ImportError", "killed by the start of pytest"),
        (-24, "...", "", "survived 60 s of CPU"),
        (4, "", "ERROR: not found: tests/x.py::y", "not known: the record names tests that are gone"),
    ],
)  # fmt: skip
def test_verdict_is_told_when_pytest_ended(
    code: int, output: str, errors: str, verdict: str
) -> None:
    assert told(code, output, errors) == verdict
