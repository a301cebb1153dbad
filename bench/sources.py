"""Source files of Python, each read and parsed once."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

N = TypeVar("N", bound=ast.AST)

#: A comment, or a string of Python 3.11, in which the quotes of an f-string can't occur.
_LITERAL = re.compile(
    r"""\#[^\n]*
    |[rRbBuUfF]{0,2}(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""",
    re.DOTALL | re.VERBOSE,
)


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file. Don't change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _by_kind(path: Path) -> dict[type[ast.AST], list[Any]]:
    kinds: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in walked(tree(path)):
        kinds[type(node)].append(node)
    return kinds


def nodes(path: Path, *kinds: type[N]) -> list[N]:
    """Return the nodes of these kinds in the tree of a file."""
    there = _by_kind(path)
    return [node for kind in kinds for node in there.get(kind, ())]


def walked(root: ast.AST) -> list[ast.AST]:
    """Return all nodes but contexts, in the order of `ast.walk`, in a third of its time."""
    reached = [root]
    for node in reached:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                reached += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                reached.append(value)
    return reached


def literals(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each comment and string, in a fraction of the time of `tokenize`."""
    line, end = 1, 0
    for match in _LITERAL.finditer(text):
        line += text.count("\n", end, match.start())
        yield line, match[0]
        line, end = line + match[0].count("\n"), match.end()


def forget() -> None:
    """Free the trees."""
    tree.cache_clear()
    _by_kind.cache_clear()
