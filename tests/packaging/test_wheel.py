"""The wheel: what is in it, and a job run by it in an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import jobq
from tests import tools

ROOT = Path(__file__).resolve().parents[2]
#: Spark looks for data sources in top-level packages named pyspark_*.
PACKAGES = ("jobq", "pyspark_jobq", "pyspark_jobq_lake")
JOBS = """
from jobq import job

@job(queue="low", result_ttl=60)
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if why := tools.missing("package index"):
        tools.not_run(why)
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--retries",
        "10",
        "--no-deps",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder with the programs of a clean environment."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    programs = folder / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "-q", "--retries", "10"]
    subprocess.run([*pip, f"{wheel}[embedded]"], check=True)
    return programs


def test_wheel_has_scripts_example_and_types_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, f"jobq-{jobq.__version__}.dist-info"}
    inside = {path.relative_to(ROOT / "lua") for path in (ROOT / "lua").rglob("*.lua")}
    packed = {Path(name).relative_to("jobq/lua") for name in names if name.startswith("jobq/lua/")}
    assert packed == inside
    assert {
        "jobq/py.typed",
        "jobq/pipeline/log4j2.properties",
        "jobq/examples/stdlib_census/demo.py",
        "jobq/examples/stdlib_census/pipeline.py",
    } <= set(names)
    assert any(name.endswith("LICENSE") for name in names)


def test_sdist_has_every_package_of_the_wheel():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    assert tuple(build["wheel"]["packages"]) == PACKAGES
    assert set(PACKAGES) < set(build["sdist"]["include"])


@pytest.mark.one_server
def test_installed_wheel_runs_a_job(installed, server, redis, tmp_path):
    (tmp_path / "clean_jobs.py").write_text(JOBS)
    env = {**os.environ, "JOBQ_URL": server.url, "PYTHONPATH": ""}

    def program(*args):
        return subprocess.run(
            [str(installed / args[0]), *args[1:]], cwd=tmp_path, env=env, check=True, text=True,
            capture_output=True, timeout=300,
        ).stdout  # fmt: skip

    assert jobq.__version__ in program("jobq", "--version")
    program("jobq", "enqueue", "clean_jobs.add", "1", "2", "--import", "clean_jobs", "--mid", "m")
    program("jobq", "worker", "--import", "clean_jobs", "--queues", "low", "--burst")
    ask = "from clean_jobs import add; print(add.receipt('m').result(timeout=10))"
    assert program("python", "-c", ask) == "3\n"
    where = program("python", "-c", "import jobq; print(jobq.__file__)")
    assert str(ROOT / "jobq") not in where


def test_installed_wheel_starts_its_embedded_server(installed, tmp_path, short_folder):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS"))}
    env = {**kept, "PYTHONPATH": "", "XDG_RUNTIME_DIR": str(short_folder), "JOBQ_EMBEDDED": "1"}

    def line(*args):
        return subprocess.run(
            [str(installed / "jobq"), *args], cwd=tmp_path, env=env, check=False, text=True,
            capture_output=True, timeout=300,
        )  # fmt: skip

    assert line("enqueue", "a.b", "--queue", "low", "--mid", "m").stdout == "m  added\n"
    assert line("embedded", "stop").returncode == 0


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ("lake ingest --lake ./lake --once", "pyarrow"),
        ("lake stats --lake ./lake", "deltalake"),
        ("report errors --live", "pyarrow"),
        ("spark shell", "pyspark"),
        ("web", "starlette"),
        ("metrics", "prometheus_client"),
        ("outbox relay --dsn postgresql://localhost/shop", "psycopg"),
        ("outbox relay --dsn mysql://localhost/shop", "PyMySQL"),
    ],
)
@pytest.mark.one_server
def test_command_of_installed_wheel_says_in_one_line_what_to_install_when_its_extra_is_missing(
    installed, server, redis, tmp_path, words, needs
):
    env = {**os.environ, "JOBQ_URL": server.url, "PYTHONPATH": ""}
    ended = subprocess.run(
        [str(installed / "jobq"), *words.split()], cwd=tmp_path, env=env, check=False, text=True,
        capture_output=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode != 0
    [line] = ended.stderr.splitlines()
    assert line.startswith("jobq: ")
    assert re.search(rf"needs {needs}[;:] pip install .*{needs.replace('_', '-')}", line, re.I)
