"""Programs and libraries beyond Python that some tests need. JOBQ_REQUIRE_TOOLS=1: all of them must be here."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from jobq.embedded.program import Program, usable
from jobq.errors import EmbeddedError
from tests import leftovers, scheduling, warm
from tests.costs import Costs
from tests.parts import Parts

#: Packages that `make test` does without.
INSTALLED_LATER = ("moto", "pandas", "playwright", "polars", "pyspark")
FAKETIME = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")


def libfaketime() -> str | None:
    """The library that gives a process a clock of its own; None where it isn't installed."""
    root = Path("/")
    found = [
        path for place in FAKETIME for path in root.glob(f"{place[1:]}/libfaketime.so.1")
    ]  # fmt: skip
    return str(found[0]) if found else None


def program(name: str) -> Callable[[], str | None]:
    """Finds a program on the path."""
    return lambda: shutil.which(name)


def server_of(kind: str) -> Program | None:
    """The first server program of this kind, or of any, that jobq itself would start; None where there is none."""
    try:
        return next((found for found in usable() if kind in ("", found.kind.lower())), None)
    except EmbeddedError:
        return None


def server(kind: str) -> str | None:
    """The path of the server program of this kind."""
    found = server_of(kind)
    return found and found.path


def package_index() -> str | None:
    """Where pip finds packages; None where no index answers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "1", "-d", folder, "hatchling",
        ]  # fmt: skip
        return (
            None if subprocess.run(command, capture_output=True, check=False).returncode else "pip"
        )


FINDING: dict[str, Callable[[], str | None]] = {
    "libfaketime": libfaketime,
    "redis-server": lambda: server("redis"),
    "package index": functools.cache(package_index),
    **{
        name: program(name)
        for name in ("curl", "gcc", "git", "node", "npm", "promtool", "redis-cli")
    },
}


def required() -> bool:
    """Whether a missing tool is a failure."""
    return bool(os.environ.get("JOBQ_REQUIRE_TOOLS"))


def missing(tool: str) -> str:
    """What is said of a test that needs a tool that isn't here; nothing if it is."""
    return "" if FINDING[tool]() else f"not run: needs {tool}"


def not_run(why: str, *, packaged: bool = True) -> NoReturn:
    """Skip; or fail where the run must be whole, and what is missing is something that a package brings."""
    if packaged and required():
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def library(name: str) -> Any:
    """A module of a package that `make test-all` installs; without it not run, or failed as `not_run` says."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name.partition(".")[0] != (error.name or "").partition(".")[0]:
            raise
    why = f"not run: needs the package {name.partition('.')[0]}"
    if required():
        pytest.fail(why, pytrace=False)
    pytest.skip(why, allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a file that imports a package which only `make test-spark` or `make test-all` installs."""
    report = yield
    error = report.call.excinfo and report.call.excinfo.value.__cause__
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in INSTALLED_LATER and not required():
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), None, f"not run: needs the package {package}")
    return report


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(scheduling, "scheduling")
    config.pluginmanager.register(Costs(), "costs")
    config.pluginmanager.register(Parts(config), "parts")
    if not hasattr(config, "workerinput"):
        leftovers.guarded()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # Of a run in the background of a shell, the processes that tests start would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "needs(tool): not run where the tool isn't there")


def pytest_unconfigure() -> None:
    warm.warm.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for reason in unmet(item):
            if not required():
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    warm.warm.enabled = item.get_closest_marker("real_process") is None
    for reason in unmet(item):
        pytest.fail(reason, pytrace=False)


def unmet(item: pytest.Item) -> list[str]:
    """Why it isn't run."""
    named = [tool for marker in item.iter_markers("needs") for tool in marker.args]
    return [reason for reason in map(missing, named) if reason]


def compiled(source: Path, folder: Path) -> str:
    """A C file as a library to preload."""
    library = folder / f"{source.stem}.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return str(library)


def chromium() -> str:
    """Where a browser is. Without one the test isn't run, wherever: Ubuntu has none as a package."""
    library("playwright.sync_api")
    found = (
        shutil.which("chromium")
        or shutil.which("google-chrome")
        or shutil.which("chromium-browser")
    )
    if not found:
        not_run("not run: needs chromium (apt-get install chromium)", packaged=False)
    return found
