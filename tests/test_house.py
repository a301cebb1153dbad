"""House rules that a machine can check: names, paths."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

from bench import sources

ROOT = Path(__file__).parents[1]
BANNED = ("util", "utils", "common", "helper", "helpers", "manager", "task", "actor", "payload")


def tracked(*patterns: str) -> list[Path]:
    """Files of the project, as git lists them; all of them where there is no git."""
    command = ["git", "ls-files", *patterns]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    except FileNotFoundError:
        listed = ""
    # A source archive has no git, or lies in a repository that doesn't know it.
    found = [ROOT / line for line in listed.splitlines()] or [
        path
        for pattern in patterns or ("*",)
        for folder, _, name in [pattern.rpartition("/")]
        for path in (ROOT / folder).rglob(name)
        if not path.relative_to(ROOT).parts[0].startswith(".")
    ]
    assert found, f"no file is {' or '.join(patterns)}"
    return [path for path in found if path.is_file() or path.is_symlink()]


@functools.cache
def names() -> list[tuple[Path, str]]:
    """Files with their own names, and with those of their functions and classes."""
    found = []
    for path in tracked("jobq/*.py", "lua/*.lua", "examples/*.py"):
        found.append((path, path.stem))
        if path.suffix == ".py":
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            found += [(path, node.name) for node in sources.nodes(path, *kinds)]
    return found


@pytest.mark.parametrize("word", BANNED)
def test_no_name_is_one_of_the_banned(word):
    named = re.compile(rf"(?:^|_){word}(?:$|_)")
    found = []
    for path, name in names():
        if (
            word == "task"
            and name != path.stem
            and path.parts[len(ROOT.parts) + 1] in ("django", "celery")
        ):
            continue  # the word of Django and Celery for what they call so
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        if named.search(snake):
            found.append(f"{path.relative_to(ROOT)}: {name}")
    assert len(names()) > 1_000
    assert not found


def test_bounds_are_named_max_and_min():
    bare = re.compile(r"\b_?(?:MOST|LEAST|LONGEST|SHORTEST)_[A-Z]\w*")
    bounds = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked("jobq/*.py", "lua/*.lua", "bench/*.py", "examples/*.py")
        for match in bare.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not bounds, "\n".join(bounds)


def test_no_path_of_a_machine_is_in_a_file():
    pattern = re.compile(r"/(?:home|Users|root|work)/\w")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked()
        if path.suffix in (".py", ".lua", ".md", ".toml", "") and path != Path(__file__)
        for match in [pattern.search(path.read_text(encoding="utf-8", errors="replace"))]
        if match
    ]
    assert not found, "\n".join(found)


def test_no_file_holds_both_sides_of_a_conflict():
    sides = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert [path for path in tracked() if path.is_file() and sides.search(path.read_bytes())] == []


def test_public_functions_have_docstrings():
    bare = []
    for path in tracked("jobq/*.py"):
        tree = sources.tree(path)
        if not ast.get_docstring(tree):
            bare.append(f"{path.relative_to(ROOT)}")
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            overload = any(
                "overload" in ast.dump(one) for one in getattr(node, "decorator_list", [])
            )
            if public and not overload and node.name[0] != "_" and not ast.get_docstring(node):
                bare.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not bare, "\n".join(bare)


def test_no_symbolic_link_leads_out_of_the_project():
    links = [path for path in tracked() if path.is_symlink()]
    assert not [path for path in links if not path.resolve().is_relative_to(ROOT)]
    assert not [path for path in links if path.readlink().is_absolute()]
