"""T1 and T2: no byte of a message becomes code: nothing unpickles, imports or looks up what it names."""

from __future__ import annotations

import ast
import builtins
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import sources
from jobq.errors import JobFailedError, JobqError
from jobq.jobs.codec import decode, encode
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.jobs.results import decode_result

PACKAGE = Path(__file__).resolve().parents[2] / "jobq"
#: Modules that make objects out of bytes, and calls that make code out of text.
MODULES = frozenset(
    (
        "pickle",
        "cPickle",
        "marshal",
        "shelve",
        "dill",
        "cloudpickle",
        "jsonpickle",
        "yaml",
        "copyreg",
    )
)
CALLS = frozenset(("eval", "exec", "compile", "__import__"))
#: Names that a module given on the command line, or one of the package, has: never one from a message.
IMPORTERS = {
    "__init__.py",
    "celery/app.py",
    "cli/modules.py",
    "cli/options.py",
    "django/__init__.py",
    "django/compat.py",
    "jobs/middleware.py",
    "observe/sentry_spans.py",
    "testing/__init__.py",
    "web/__init__.py",
    "web/routes.py",
    "worker/async_runner.py",
}


class Trap:
    """Unpickled, it would tell."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def nodes(*kinds: type[ast.AST]) -> list[tuple[str, ast.AST]]:
    """Return the nodes of these kinds in the package, each with its file."""
    return [
        (str(path.relative_to(PACKAGE)), node)
        for path in PACKAGE.rglob("*.py")
        for node in sources.nodes(path, *kinds)
    ]


def test_package_imports_nothing_that_makes_objects_out_of_bytes():
    found = [
        (path, name)
        for path, node in nodes(ast.Import, ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
        if name and name.split(".")[0] in MODULES
    ]
    assert not found


def test_package_makes_no_code_out_of_text():
    found = [
        (path, node.func.id)
        for path, node in nodes(ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in CALLS
    ]
    # It compares a job's function with its source file, and doesn't run code.
    assert found == [("jobs/functions.py", "compile")]


def test_only_the_command_line_and_the_package_itself_import_by_name():
    found = {
        path
        for path, node in nodes(ast.ImportFrom, ast.Import)
        if any("import_module" in alias.name or alias.name == "importlib" for alias in node.names)
    }
    assert found <= IMPORTERS, found - IMPORTERS


def test_pickle_in_a_message_is_dead_and_stays_a_pickle(attempt):
    content = pickle.dumps(Trap())
    assert attempt(content).outcome == "dead"
    assert attempt(encode("x", (content.hex(),))).outcome == "unknown"
    assert not Trap.sprung
    pickle.loads(content)
    assert Trap.sprung


@pytest.fixture
def imports(monkeypatch):
    """What is imported while the test looks."""
    seen: list[str] = []
    true_import, true_module = builtins.__import__, importlib.import_module

    def noticed(name, *args, **kwargs):
        seen.append(name)
        return true_import(name, *args, **kwargs)

    def noticed_module(name, *args):
        seen.append(name)
        return true_module(name, *args)

    monkeypatch.setattr(builtins, "__import__", noticed)
    monkeypatch.setattr(importlib, "import_module", noticed_module)
    return seen


NAMES = ["os.system", "os:system", "subprocess.Popen", "builtins.eval", "__import__", "jobq.cli.main", "antigravity",
         "../x", "os.system\0", "__class__.__init__", "this", "tests.security.conftest", "", " "]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_named_function_is_looked_up_among_jobs_alone(attempt, registry, imports, name):
    job(name="mail.send", registry=registry)(lambda: None)
    attempt(encode("mail.send"))
    imports.clear()
    ended = attempt(b'{"job":%b}' % __import__("msgspec").json.encode(name), mid="m")
    imports[:] = [one for one in imports if one not in ("msgspec",)]
    assert ended.outcome in ("unknown", "dead")
    assert not set(imports) & {"os", "subprocess", "builtins", "antigravity", "this", "tests"}
    assert "antigravity" not in __import__("sys").modules


@given(st.text(max_size=60), st.recursive(st.none() | st.text(), st.lists, max_leaves=5))
def test_no_random_name_runs_anything(name, argument):
    ran = []
    registry = Registry()
    job(name="the.one", registry=registry)(lambda *a: ran.append(a))
    runner = Executor(registry)
    assert registry.find(name) is None or name == "the.one"
    try:
        call = decode(encode(name or "x", (argument,)))
    except JobqError:
        return
    assert (runner.registry.find(call.job) is None) == (call.job != "the.one")
    assert not ran


def test_a_hundred_thousand_names_import_and_start_nothing():
    """Told by the interpreter's own audit events."""
    command = [sys.executable, "-m", "tests.security.look_up_names", "100000", "20261121"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "100000 []\n"


def test_error_of_a_result_is_text_whatever_class_it_names():
    for kind in ("os.system", "builtins.SystemExit", "jobq.errors.Dead"):
        with pytest.raises(JobFailedError, match="boom"):
            decode_result(b'{"error":"boom","type":"%b"}' % kind.encode(), "x", "m")
    assert decode_result(b'{"ok":{"__class__":"os.system","$ref":"x"}}', "x", "m") == {
        "__class__": "os.system",
        "$ref": "x",
    }
