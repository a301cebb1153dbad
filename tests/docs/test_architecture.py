"""The page on the architecture lists every package, by its true size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.shape import code_lines
from tests.test_layers import CORE, LAYERS

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "architecture.md").read_text(
    encoding="utf-8"
)
#: How far a size on the page may be from the true one, as a part of it and in lines.
TOLERANCE, LINES = 0.1, 60
ROW = re.compile(r"^\| (\d) \| (?:`(\w+)/`|top of `(jobq)`) \| ([\d,]+) \|", re.MULTILINE)


def sizes(top: str) -> dict[str, int]:
    return {name.rpartition("/")[2]: count for name, count in code_lines(top).items()}


def listed(top: str) -> dict[str, int]:
    """Package -> its lines on the page."""
    rows = {
        "jobq": [(name or whole, lines) for _, name, whole, lines in ROW.findall(PAGE)],
        "lua": re.findall(r"^\| `lua/(\w+)/` \| ([\d,]+) \|", PAGE, re.MULTILINE),
    }[top]
    assert len(rows) == len({name for name, _ in rows})
    return {name: int(lines.replace(",", "")) for name, lines in rows}


@pytest.mark.parametrize("top", ["jobq", "lua"])
def test_page_lists_each_package_with_its_size(top: str) -> None:
    true, told = sizes(top), listed(top)
    assert told.keys() == true.keys()
    wrong = {
        name: (told[name], count)
        for name, count in true.items()
        if abs(told[name] - count) > max(LINES, TOLERANCE * count)
    }
    assert wrong == {}, "on the page and in the tree"


def test_page_begins_with_the_core_and_gives_the_layers_that_imports_obey() -> None:
    core, rest = (ROW.findall(part) for part in PAGE.split("### The rest"))
    assert {name for _, name, _, _ in core if name} == {name for name in CORE if LAYERS[name]}
    assert all(int(layer) == LAYERS[name] for layer, name, _, _ in (*core, *rest) if name)
