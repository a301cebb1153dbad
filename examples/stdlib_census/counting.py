"""Count functions, classes, lines and imports of a Python file."""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Counts:
    """Counts of a file, or sums of many files.

    Attributes:
        imports: Top-level module -> number of import statements that name it.
    """

    files: int = 0
    functions: int = 0
    classes: int = 0
    lines: int = 0
    imports: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Add the counts of `other` to these counts."""
        self.files += other.files
        self.functions += other.functions
        self.classes += other.classes
        self.lines += other.lines
        self.imports.update(other.imports)


def count(path: str) -> Counts:
    """Parse a file and return its counts. Raise SyntaxError or ValueError if it can't be parsed."""
    content = Path(path).read_bytes()
    with warnings.catch_warnings():
        # New Python versions warn about escapes in old code.
        warnings.simplefilter("ignore")
        tree = ast.parse(content, path)
    counts = Counts(files=1, lines=content.count(b"\n"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            counts.functions += 1
        elif isinstance(node, ast.ClassDef):
            counts.classes += 1
        elif isinstance(node, ast.Import):
            counts.imports.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            counts.imports[node.module.partition(".")[0]] += 1
    return counts
