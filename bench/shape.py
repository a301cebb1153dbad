"""`python -m bench.shape`: how large each package is, and how much of it only passes work on.

Code lines leave out blank lines, comments and docstrings. A one-caller function is a function or method of `jobq`
whose name occurs once outside its definition. A passed-on parameter is only passed to another call under the same
name. Both are read from syntax trees, so they are estimates that serve to compare two versions.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench import sources

ROOT = Path(__file__).parents[1]
_WORD = re.compile(r"[A-Za-z_]\w*")
_LUA_BLOCK_COMMENT = re.compile(r"--\[(=*)\[.*?\]\1\]", re.DOTALL)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class PackageShape:
    """The counts of one package."""

    files: int = 0
    code: int = 0
    docstrings: int = 0
    functions: int = 0
    function_lines: int = 0
    one_caller: int = 0
    parameters: int = 0
    passed_on: int = 0


def package_of(path: Path, top: Path) -> str:
    """Return the folder below `top` that `path` is in, or the name of `top` for a file directly in it."""
    parts = path.relative_to(top).parts
    return f"{top.name}/{parts[0]}" if len(parts) > 1 else top.name


def docstring_lines(nodes: Iterable[ast.AST]) -> set[int]:
    """Return the numbers of all lines that docstrings take."""
    lines: set[int] = set()
    for node in nodes:
        if isinstance(node, _DOCUMENTED) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def python_lines(path: Path) -> tuple[set[int], set[int]]:
    """Return the line numbers of code, and of docstrings."""
    text = path.read_text(encoding="utf-8")
    docstrings = docstring_lines(sources.nodes(path, *_DOCUMENTED))
    lines = enumerate(map(str.strip, text.split("\n")), 1)
    code = {number for number, line in lines if line and line[0] != "#"}
    for first, literal in sources.literals(text):
        # In a string, lines that are blank or begin with # are code.
        if literal[0] != "#" and "\n" in literal:
            code.update(range(first, first + literal.count("\n") + 1))
    return code - docstrings, docstrings


def lua_code_lines(text: str) -> int:
    """Return the number of lines that hold code."""
    lines = _LUA_BLOCK_COMMENT.sub("", text).splitlines()
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("--"))


@cache
def code_lines(top: str) -> Counter[str]:
    """Return code lines by package below `top`, a folder of the repository."""
    folder = ROOT / top
    lines: Counter[str] = Counter()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.lua")]):
        if path.suffix == ".lua":
            count = lua_code_lines(path.read_text(encoding="utf-8"))
        else:
            count = len(python_lines(path)[0])
        lines[package_of(path, folder)] += count
    return lines


def passed_on(function: _Function) -> tuple[int, int]:
    """Return the number of parameters, and how many are only handed on under their own name."""
    names = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)} - {"self", "cls"}
    used: Counter[str] = Counter()
    handed: Counter[str] = Counter()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in names:
            used[node.id] += 1
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if isinstance(keyword.value, ast.Name) and keyword.value.id == keyword.arg:
                    handed[keyword.value.id] += 1
            for argument in node.args:
                if isinstance(argument, ast.Name):
                    handed[argument.id] += 1
    return len(names), sum(1 for name in names if 0 < used[name] == handed[name])


def jobq_shape() -> dict[str, PackageShape]:
    """Return the shape of each package of `jobq`."""
    folder = ROOT / "jobq"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    words: Counter[str] = Counter()
    for text in texts.values():
        words.update(_WORD.findall(text))
    shapes: dict[str, PackageShape] = {}
    for path in texts:
        shape = shapes.setdefault(package_of(path, folder), PackageShape())
        code, docstrings = python_lines(path)
        shape.files += 1
        shape.code += len(code)
        shape.docstrings += len(docstrings)
        functions: list[_Function] = [*sources.nodes(path, ast.FunctionDef)]
        functions += sources.nodes(path, ast.AsyncFunctionDef)
        for node in functions:
            count, handed = passed_on(node)
            shape.functions += 1
            shape.function_lines += (node.end_lineno or node.lineno) - node.lineno + 1
            shape.one_caller += words[node.name] == 2
            shape.parameters += count
            shape.passed_on += handed
    return shapes


def main() -> None:
    """Print a row per package and the sums."""
    heads = ("files", "code", "docs", "functions", "mean", "one-caller", "passed on")
    widths = (6, 8, 7, 10, 6, 11, 10)
    print(f"{'package':22}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths)))
    total = PackageShape()
    for name, shape in sorted(jobq_shape().items()):
        _print_row(name, shape)
        for field in vars(total):
            setattr(total, field, getattr(total, field) + getattr(shape, field))
    _print_row("jobq, all", total)
    for top in ("lua", "tests"):
        lines = code_lines(top)
        for name, count in sorted(lines.items()):
            print(f"{name:28}{count:8,}")
        print(f"{top + ', all':28}{sum(lines.values()):8,}")


def _print_row(name: str, shape: PackageShape) -> None:
    mean = shape.function_lines / max(shape.functions, 1)
    share = 100 * shape.passed_on / max(shape.parameters, 1)
    print(
        f"{name:22}{shape.files:6}{shape.code:8,}{shape.docstrings:7,}{shape.functions:10,}{mean:6.1f}"
        f"{shape.one_caller:11,}{share:9.0f}%"
    )


if __name__ == "__main__":
    main()
