"""`.ci/run` on a machine of stubs: what it installs, where it makes what, in which order, and what it leaves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("git")
ROOT = Path(__file__).resolve().parents[2]
#: What every machine has.
GIVEN = (
    "basename", "bash", "cat", "dirname", "env", "git", "id", "ls", "mkdir", "mktemp", "rm", "sed", "sh", "timeout",
)  # fmt: skip
TOOLS = (
    "make",
    "redis-server",
    "redis-cli",
    "gcc",
    "node",
    "npm",
    "ruby",
    "sidekiq",
    "chromium",
    "systemd-analyze",
)
#: What it makes, in this order.
PARTS = [["test"], ["test-spark"], ["REST=1", "test-all"], ["check"]]
STUB = """#!/bin/sh
echo "$(basename "$0") $* | $PWD | $JOBQ_REQUIRE_TOOLS" >> "$RAN"
case "$(basename "$0") $* |" in *"$FAILING"*) exit 1;; esac
"""


class Machine:
    """A checkout with one file that isn't committed, and a path on which tools are stubs."""

    def __init__(self, place: Path) -> None:
        self.checkout, self._bin, self._log = place / "checkout", place / "bin", place / "ran"
        self.temporary = place / "tmp"
        self._bin.mkdir()
        self.temporary.mkdir()
        for name in GIVEN:
            found = shutil.which(name)
            assert found, name
            (self._bin / name).symlink_to(found)
        (self._bin / "python3").symlink_to(Path(sys.executable).resolve())
        for name in (*TOOLS, "apt-get", "sudo"):
            self.stub(name)
        for path in (
            ".ci/run",
            "tests/interop/rsmq/conftest.py",
            "tests/interop/ruby/conftest.py",
        ):
            (self.checkout / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.checkout / path)
        self.git("init", "-q")
        self.git("add", ".")
        self.git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "x")
        (self.checkout / ".venv").mkdir()

    def git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.checkout, check=True)

    def stub(self, name: str) -> None:
        (self._bin / name).write_text(STUB)
        (self._bin / name).chmod(0o755)

    def without(self, *names: str) -> None:
        for name in names:
            (self._bin / name).unlink()

    def run(self, failing: str = "nothing") -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """How it ended, and the lines that stubs wrote."""
        env = {
            "PATH": str(self._bin), "HOME": str(self.checkout), "TMPDIR": str(self.temporary),
            "RAN": str(self._log), "FAILING": failing,
        }  # fmt: skip
        done = subprocess.run(
            [str(self.checkout / ".ci" / "run")], env=env, capture_output=True, text=True
        )
        return done, self._log.read_text().splitlines() if self._log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def places(ran: list[str], program: str) -> list[tuple[str, Path]]:
    """Arguments and folder of each call of a program."""
    split = [line.split(" | ") for line in ran]
    return [(words, Path(folder)) for words, folder, _ in split if words.split()[0] == program]


def test_ci_makes_test_before_any_other_target_in_a_clone_of_its_own(machine: Machine):
    done, ran = machine.run()

    assert done.returncode == 0, done.stderr
    made = places(ran, "make")
    assert [words.split()[2:] for words, _ in made] == PARTS
    [folder] = {folder for _, folder in made}
    assert folder != machine.checkout
    assert folder.parent.parent == machine.temporary
    required = [line.endswith("| 1") for line in ran if line.startswith("make")]
    assert required == [False, False, True, True]


def test_ci_leaves_nothing_behind(machine: Machine):
    machine.run()
    assert list(machine.temporary.iterdir()) == []

    machine.run(failing="make")
    assert list(machine.temporary.iterdir()) == []


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_ci_makes_every_target_and_fails_when_one_fails(machine: Machine, target: str):
    rest = "REST=1 " if target == "test-all" else ""
    done, ran = machine.run(failing=f"PYTHON=python3 {rest}{target} |")

    assert [words.split()[2:] for words, _ in places(ran, "make")] == PARTS
    assert done.returncode != 0
    assert f".ci/run: failed: {target}\n" in done.stderr


def test_ci_installs_only_the_packages_whose_commands_are_missing(machine: Machine):
    machine.without("ruby", "sidekiq", "redis-cli")
    _, ran = machine.run()

    [installs] = [words for words, _ in places(ran, "apt-get") if " install " in words]
    named = {word for word in installs.split()[3:] if not word.startswith("-")}
    assert {"ruby", "ruby-sidekiq", "redis-tools"} <= named
    assert not named & {"nodejs", "npm", "redis-server", "make", "git", "gcc"}
