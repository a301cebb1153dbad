"""The archive of classes: used when it is there, never needed, made whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.errors import PipelineError
from jobq.pipeline import archive
from jobq.pipeline.java import Java
from tests import tools

tools.library("pyspark")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(archive.SWITCH, raising=False)
    yield
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def java(home: Path | str = "/opt/java", version: str = "17.0.15") -> Java:
    return Java(Path(home), version, "PATH")


def made(one: Java) -> Path:
    """An archive in its place."""
    place = archive.place(one)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"x")
    return place


def test_no_option_when_there_is_no_archive():
    assert archive.options(java()) == []


def test_archive_is_used_as_its_java_reads_it():
    older, newer = java(version="21.0.8"), java(version="25.0.2")
    assert archive.options(java()) == []
    assert f"-XX:SharedArchiveFile={made(older)}" in archive.options(older)
    assert f"-XX:AOTCache={made(newer)}" in archive.options(newer)


def test_archive_of_another_java_is_not_used():
    made(java())
    assert archive.options(java(version="17.0.16")) == []
    assert archive.options(java(home="/opt/other")) == []


def test_archive_is_not_used_when_switched_off(monkeypatch):
    made(java())
    monkeypatch.setenv(archive.SWITCH, "off")
    assert archive.options(java()) == []


def test_archive_is_not_used_or_made_where_others_can_write():
    one = java(version="21.0.8")
    place = made(one)
    assert archive.options(one)
    for path in (place, place.parent, place.parent.parent):
        before = path.stat().st_mode
        path.chmod(0o777)
        assert archive.options(one) == []
        path.chmod(before)
    place.parent.chmod(0o777)
    with pytest.raises(PipelineError, match="can be written by everybody"):
        archive.build(one)


def test_failed_warmup_says_why_and_leaves_the_old_archive(tmp_path, monkeypatch):
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n')
    (home / "bin" / "java").write_text("#!/bin/sh\necho broken runtime >&2\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    old = made(java(home))
    with pytest.raises(PipelineError, match="broken runtime"):
        archive.build(java(home))
    assert [path.read_bytes() for path in old.parent.iterdir()] == [b"x"]


def test_warmup_says_where_it_may_not_write(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PipelineError, match="can't be written"):
        archive.build(java())


ASK = """
print("queues", load("queues").count())
runtime = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
print("options", " ".join(runtime.getInputArguments()))
"""


@pytest.mark.timeout(1800)
def test_shell_starts_from_the_archive_that_warmup_made(valkey_queue, valkey_client, tmp_path):
    valkey_queue.enqueue(b"{}")

    def line(*args: str, given: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "jobq", "spark", *args, "--url", valkey_client.url],
            input=given, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = json.loads(line("warmup", "--json"))
    assert Path(told["archive"]).stat().st_size == told["bytes"] > 50 * 2**20
    said = line("shell", "--master", "local[1]", "--memory", "600m", given=ASK)
    assert "queues 1" in said
    assert f"={told['archive']} " in said.partition("options ")[2]
    assert "-Xmx600m" in said
