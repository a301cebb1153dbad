"""Sow faults into `lua/` and `jobq/`, and count how many of them the tests notice.

`python -m tests.sown record [pytest arguments]` runs tests once, and adds to the record which functions of `jobq/` and
which scripts each of them runs in its own process. `python -m tests.sown list` prints the sample: 120 faults, the same
ones as long as the code is the same. `python -m tests.sown run [FIRST LAST]` runs the recorded tests of each, or of
those with these numbers, in a copy of this checkout, up to the first failure, and for 60 s of CPU at most.

What only other processes run, such as a worker that a test starts, isn't recorded: a fault there counts as not run.
"""

from __future__ import annotations

import ast
import json
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

from jobq.client.scripts import Script
from tests.costs import noted

ROOT = Path(__file__).parents[1]
RECORD = Path(".pytest_cache/sown.json")
SEED, SAMPLE, CPU_S, WALL_S = 33, 120, 60, 900
#: Of the tests of a fault.
MAX_TESTS = 400
#: Tests that sow faults of their own into the text of a script. Where that has changed they fail, which shows nothing.
_SOWERS = re.compile(r"sown|mutant")
KINDS = ("dropped write", "dropped guard", "off by one", "swapped order", "inverted comparison")
INVERTED = {
    "==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
_SYMBOLS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_LUA_COMPARISON = re.compile(r" (==|~=|<=|>=|<|>) ")
_LUA_GUARD = re.compile(r"^(\s*if )(.+?)( then (?:return|refuse)\b.*)$")
_LUA_WRITE = re.compile(
    r"^\s*redis\.call\('(?:[HSZ]?SET(?:NX)?|[HZ]?DEL|[SZ](?:ADD|REM)|[LR]PUSH|UNLINK|XADD)'.*\)$"
)
_LUA_CALL = re.compile(r"^(\s*)[\w.]+\(.*\)$")
_LUA_STEP = re.compile(r" ([+-]) 1\b")
_INCLUDE = re.compile(r"^--@include ((?:\w+/)?\w+)$", re.MULTILINE)


class Fault(NamedTuple):
    """Text of a file, from one position to another, that other text replaces. unit: what a test has to run."""

    kind: str
    path: str
    line: int
    unit: str
    begin: int
    end: int
    text: str

    def sown(self, source: str) -> str:
        """Return the source with this fault."""
        return source[: self.begin] + self.text + source[self.end :]


def faults_of_lua(path: str, source: str) -> Iterator[Fault]:
    """Yield the faults of a script, one change each, behind its header."""
    begin, lines = 0, source.splitlines(keepends=True)
    header = source.find("\n]]")
    for number, whole in enumerate(lines, 1):
        line = whole.rstrip("\n")

        def fault(
            kind: str, start: int, end: int, text: str, base: int = begin, at: int = number
        ) -> Fault:
            return Fault(kind, path, at, path, base + start, base + end, text)

        if begin > header and not line.lstrip().startswith("--"):
            for match in _LUA_COMPARISON.finditer(line):
                inverted = INVERTED[match[1].replace("~", "!")].replace("!", "~")
                yield fault("inverted comparison", *match.span(1), inverted)
            for match in _LUA_STEP.finditer(line):
                yield fault("off by one", *match.span(), "")
            if guard := _LUA_GUARD.match(line):
                yield fault("dropped guard", *guard.span(2), "false")
            if _LUA_WRITE.match(line):
                yield fault("dropped write", 0, len(line), "")
            following = lines[number].rstrip("\n") if number < len(lines) else ""
            first, second = _LUA_CALL.match(line), _LUA_CALL.match(following)
            if first and second and first[1] == second[1] and line != following:
                swapped = f"{following}\n{line}"
                yield fault("swapped order", 0, len(swapped), swapped)
        begin += len(whole)


def faults_of_python(path: str, source: str) -> Iterator[Fault]:
    """Yield the faults of a module's functions, one change each."""
    raw = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [0]
    for line in raw:
        starts.append(starts[-1] + len(line.decode()))

    def place(row: int, column: int) -> int:
        return starts[row - 1] + len(raw[row - 1][:column].decode())

    def span(first: ast.AST, last: ast.AST) -> tuple[int, int]:
        a: Any = first
        b: Any = last
        return place(a.lineno, a.col_offset), place(b.end_lineno, b.end_col_offset)

    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        for node in _inside(function):
            for kind, begin, end, text in _changes(node, span, source):
                yield Fault(
                    kind,
                    path,
                    source.count("\n", 0, begin) + 1,
                    f"{path}:{first}",
                    begin,
                    end,
                    text,
                )


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body that are in no inner function."""
    for node in getattr(function, "body", []):
        stack = [node]
        while stack:
            inner = stack.pop()
            if not isinstance(
                inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
            ):
                yield inner
                stack += ast.iter_child_nodes(inner)
    yield function


def _changes(node: ast.AST, span: Any, source: str) -> Iterator[tuple[str, int, int, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        symbol = _SYMBOLS[type(node.ops[0])]
        begin, end = (
            span(node.left, node.left)[1],
            span(node.comparators[0], node.comparators[0])[0],
        )
        words = source[begin:end].replace(symbol, INVERTED[symbol], 1)
        yield "inverted comparison", begin, end, words
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", *span(node, node), str(node.value + 1)
    if (
        isinstance(node, ast.If)
        and not node.orelse
        and isinstance(node.body[0], ast.Raise | ast.Return | ast.Continue)
    ):
        yield "dropped guard", *span(node.test, node.test), "False"
    if _is_call(node) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    ):
        yield "dropped write", *span(node, node), "pass"
    body = getattr(node, "body", None)
    for former, latter in pairwise(body) if isinstance(body, list) else ():
        if _is_call(former) and _is_call(latter):
            (a, b), (c, d) = span(former, former), span(latter, latter)
            yield "swapped order", a, d, source[c:d] + source[b:c] + source[a:b]


def _is_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr):
        return False
    value = node.value.value if isinstance(node.value, ast.Await) else node.value
    return isinstance(value, ast.Call)


def sample() -> list[Fault]:
    """Return the sample: as many of each kind in Lua as in Python."""
    chosen: list[Fault] = []
    draw = random.Random(SEED)
    for folder, pattern, faults in (
        ("lua", "*.lua", faults_of_lua),
        ("jobq", "*.py", faults_of_python),
    ):
        by_kind: dict[str, list[Fault]] = defaultdict(list)
        for path in sorted((ROOT / folder).rglob(pattern)):
            for fault in faults(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")):
                by_kind[fault.kind].append(fault)
        for kind in KINDS:
            chosen += draw.sample(by_kind[kind], SAMPLE // 2 // len(KINDS))
    return chosen


def including(changed: str) -> set[str]:
    """Return the names of the scripts that hold this file of `lua/`, itself included."""
    holders, names = {ROOT / changed}, set()
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "lua").rglob("*.lua")}
    while holders:
        held = holders.pop()
        names.add(held.stem)
        for path, text in files.items():
            included = {
                path.parents["/" in name] / f"{name}.lua" for name in _INCLUDE.findall(text)
            }
            if held in included and path.stem not in names:
                holders.add(path)
    return {name for name in names if name[0] != "_"}


class Recorder:
    """Plugin: records what each test runs in this process."""

    def __init__(self) -> None:
        self.ran: dict[str, list[str]] = {}
        self.failed: set[str] = set()
        self._units: set[str] = set()
        self._unit_of: dict[CodeType, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the tests that fail without a fault: they can't tell anything."""
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Trace calls while the test and its fixtures run."""
        self._units = set()
        sys.settrace(self._called)
        threading.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.ran[item.nodeid] = sorted(self._units)

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        unit = self._unit_of.get(code)
        if unit is None:
            name = code.co_filename.removeprefix(f"{ROOT}/")
            unit = f"{name}:{code.co_firstlineno}" if name.startswith("jobq/") else ""
            if name == "tests/model/machine.py" and code.co_name == "run":
                unit = "machine"
            self._unit_of[code] = unit
        if unit == "machine":
            self._units.add(f"lua:{frame.f_locals['name'].rpartition('/')[2]}")
        elif unit:
            self._units.add(unit)
            # Of a client's calls these two know the script.
            if code.co_name in ("words", "__init__"):
                script = frame.f_locals.get("script")
                if isinstance(script, Script):
                    self._units.add(f"lua:{script.name}")


def recorded() -> dict[str, list[str]]:
    """Return what each recorded test runs."""
    ran: dict[str, list[str]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return ran


def covering(fault: Fault, ran: dict[str, list[str]]) -> list[str]:
    """Return tests that run what the fault changes: those of its folder, and those that run least besides."""
    lua = fault.path.startswith("lua/")
    units = {f"lua:{name}" for name in including(fault.path)} if lua else {fault.unit}
    tests = [test for test, found in ran.items() if units & set(found) and not _SOWERS.search(test)]
    folder, costs = "/".join(("tests", *Path(fault.path).parts[1:2], "")), noted()
    special = sorted(tests, key=lambda test: len(ran[test]))
    near = sorted(special, key=lambda test: (not test.startswith(folder), costs.get(test, 0.0)))
    chosen = {*special[: MAX_TESTS // 2], *near[: MAX_TESTS // 2]}
    return [test for test in near if test in chosen]


def verdict(fault: Fault, tests: list[str]) -> str:
    """Run the tests on a copy with the fault; return 'killed by' a test, 'survived', or why that isn't known."""
    if not tests:
        return "no recorded test runs it"
    with tempfile.TemporaryDirectory(prefix="jobq-sown-") as folder:
        copy = Path(folder, "copy")
        shutil.copytree(
            ROOT, copy, symlinks=True,
            ignore=shutil.ignore_patterns(".venv*", ".git", "__pycache__", ".pytest_cache"),
        )  # fmt: skip
        path = copy / fault.path
        path.write_text(fault.sown(path.read_text(encoding="utf-8")), encoding="utf-8")
        return _run(copy, tests)


def _run(copy: Path, tests: list[str]) -> str:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:xdist",
        "--server",
        "first",
        "--part",
        "test",
        *tests,
    ]
    try:
        run = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, timeout=WALL_S, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S)),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"survived {WALL_S} s"
    return told(run.returncode, run.stdout, run.stderr)


def told(code: int, output: str, errors: str) -> str:
    """Return the verdict that the end of pytest tells."""
    if "not found:" in errors:
        return "not known: the record names tests that are gone"
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE):
        return f"killed by {failed[1]}"
    if code < 0:
        return f"survived {CPU_S} s of CPU"
    # A warning behind the last test, of a socket that is open, is no failure.
    if passed := re.search(r"^(\d+) passed", output, re.MULTILINE):
        return f"survived {passed[1]} tests"
    return "killed by the start of pytest"


def main(words: list[str]) -> int:
    """Record, list or run; return the exit code."""
    match words:
        case ["record", *arguments]:
            recorder = Recorder()
            pytest.main(
                ["-q", "-p", "no:xdist", "--server", "first", "--part", "test", *arguments],
                plugins=[recorder],
            )
            RECORD.parent.mkdir(exist_ok=True)
            passed = {
                test: units for test, units in recorder.ran.items() if test not in recorder.failed
            }
            RECORD.write_text(json.dumps({**recorded(), **passed}))
        case ["list"]:
            for number, fault in enumerate(sample(), 1):
                print(f"{number:3} {fault.path}:{fault.line} {fault.kind}: {fault.text!r}")
        case ["run", *numbers]:
            first, last = map(int, numbers or (1, SAMPLE))
            return _report(first, last)
        case _:
            print(__doc__)
            return 2
    return 0


def _report(first: int, last: int) -> int:
    ran = recorded()
    words: list[str] = []
    for number, fault in enumerate(sample()[first - 1 : last], first):
        words.append(verdict(fault, covering(fault, ran)))
        print(f"{number:3} {fault.path}:{fault.line} {fault.kind}: {words[-1]}", flush=True)
    killed, covered = (
        sum(word.startswith(begin) for word in words)
        for begin in ("killed", ("killed", "survived"))
    )
    print(f"{killed} of {len(words)} killed; recorded tests run {covered}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
