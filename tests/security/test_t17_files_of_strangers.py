"""T17: on a machine with other users, none of their files is settings or code of yours."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq import trust
from jobq.cli import settings
from jobq.embedded.files import data_folder
from tests.security.strangers import ROOT, STRANGER, given_away, needs_root, ran, run_as

EVIL = """
[tool.jobq]
url = "redis://stranger.invalid"
imports = ["evil"]
"""
MARK = "the stranger's code ran"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder elsewhere, and no file that a variable names."""
    monkeypatch.delenv("JOBQ_PYPROJECT", raising=False)
    monkeypatch.delenv("JOBQ_IMPORT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def trap(tmp_path: Path, home: Path) -> Path:
    """A folder with a pyproject.toml that names the module `evil` beside it, and a folder in it to work in."""
    return trapped(tmp_path)


def trapped(where: Path) -> Path:
    """A trap in a file; see `trap`."""
    folder = where / "open"
    (folder / "mine").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(EVIL)
    (folder / "evil.py").write_text(f"import sys\nprint({MARK!r}, file=sys.stderr)\n")
    return folder


@pytest.fixture
def reachable(home: Path) -> Iterator[Path]:
    """A folder that every user of the machine can pass through, unlike pytest's folders."""
    folder = Path(tempfile.mkdtemp(prefix="jobq-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def refusal(folder: Path) -> str:
    """The one sentence on the file that isn't read."""
    found, refused = settings.nearest(folder)
    assert found is None
    [reason] = refused
    return reason


@needs_root
@pytest.mark.parametrize("command", [("worker", "--burst"), ("enqueue", "evil.job"), ("queues",)])
def test_file_of_a_stranger_changes_nothing_when_a_command_runs_below_it(
    trap: Path, client: Any, command: tuple[str, ...]
) -> None:
    given_away(trap)
    ended = ran("-m", "jobq", *command, cwd=trap / "mine", JOBQ_URL=client.url)
    assert MARK not in ended.stderr
    assert f"jobq: {trap}/pyproject.toml isn't read: " in ended.stderr
    assert f"belongs to uid {STRANGER}" in ended.stderr
    assert "JOBQ_PYPROJECT=" in ended.stderr


@needs_root
def test_file_of_root_is_read_and_that_of_another_user_is_not_when_you_are_not_root(
    reachable: Path,
) -> None:
    trap, home = trapped(reachable), str(reachable)
    imports = "from pathlib import Path; from jobq.cli import settings"
    code = (
        "found, refused = settings.nearest(Path.cwd()); print(found and str(found.path), refused)"
    )
    said = run_as(STRANGER, imports, code, cwd=trap / "mine", HOME=home)
    assert said.stdout == f"{trap}/pyproject.toml []\n", said.stderr
    given_away(trap, STRANGER + 1)
    said = run_as(STRANGER, imports, code, cwd=trap / "mine", HOME=home)
    assert said.stdout.startswith("None [") and f"uid {STRANGER + 1}" in said.stdout, said.stderr


@needs_root
def test_link_of_yours_to_a_file_of_a_stranger_is_refused(trap: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.toml"
    theirs.write_text(EVIL)
    given_away(theirs)
    (trap / "pyproject.toml").unlink()
    (trap / "pyproject.toml").symlink_to(theirs)
    found, refused = settings.nearest(trap / "mine")
    assert (found, refused) == (None, [])
    theirs.unlink()
    theirs.write_text(EVIL)
    assert settings.nearest(trap / "mine").project


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_file_of_yours_is_refused_when_everybody_can_write_to_its_folder(
    trap: Path, mode: int
) -> None:
    trap.chmod(mode)
    assert "its folder can be written by everybody" in refusal(trap / "mine")


@pytest.mark.parametrize(
    ("mode", "words"),
    [(0o666, "it can be written by everybody"), (0o602, "it can be written by everybody")],
)
def test_file_of_yours_is_refused_when_others_can_write_to_it(
    trap: Path, mode: int, words: str
) -> None:
    (trap / "pyproject.toml").chmod(mode)
    assert words in refusal(trap / "mine")


@needs_root
def test_folder_is_refused_when_a_group_with_others_can_write_to_it(trap: Path) -> None:
    trap.chmod(0o775)
    assert settings.nearest(trap).project  # root's own group has nobody else
    os.chown(trap, 0, STRANGER)
    assert f"its folder can be written by the group with gid {STRANGER}" in refusal(trap)
    trap.chmod(0o755)
    assert settings.nearest(trap).project


def test_file_without_a_section_is_passed_over_in_silence(trap: Path) -> None:
    (trap / "pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['jobq']\n")
    trap.chmod(0o777)
    assert settings.nearest(trap / "mine") == (None, [])


def test_file_further_up_is_read_when_a_nearer_one_is_refused(trap: Path, tmp_path: Path) -> None:
    trap.chmod(0o777)
    (tmp_path / "pyproject.toml").write_text("[tool.jobq]\nqueues = 'low'\n")
    found, refused = settings.nearest(trap / "mine")
    assert found and found.path == tmp_path / "pyproject.toml"
    assert len(refused) == 1


def test_nothing_above_your_home_is_read(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = trap / "mine"
    (home / "app").mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert f"it is above your home, {home}" in refusal(home / "app")
    (home / "pyproject.toml").touch()
    found = settings.nearest(home / "app").project
    assert found and found.path == home / "pyproject.toml"


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="not run: needs unshare")
@pytest.mark.parametrize("kind", ["-t tmpfs none", "--bind ."])
@pytest.mark.parametrize("name", ["mine", "of mine"])
def test_nothing_above_a_mount_is_read(trap: Path, kind: str, name: str) -> None:
    mount = trap / name
    mount.mkdir(exist_ok=True)
    code = (
        "from pathlib import Path; from jobq.cli import settings;"
        "found, refused = settings.nearest(Path.cwd()); print(found, *refused)"
    )
    # In a name space of its own, so that nothing stays mounted.
    script = f'mount {kind} "$1" && mkdir -p "$1/app" && cd "$1/app" && exec "$2" -c "$3"'
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(mount), sys.executable, code], cwd=trap / "mine",
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300,
    )  # fmt: skip
    if "unshare" in ended.stderr or "permission denied" in ended.stderr:
        pytest.skip(f"not run: this machine lets nobody mount: {ended.stderr}")
    words = f"None {trap}/pyproject.toml isn't read: it is above the mount point {mount};"
    assert words in ended.stdout, ended.stderr


def test_pipe_in_place_of_the_file_holds_nobody_up(trap: Path) -> None:
    (trap / "pyproject.toml").unlink()
    os.mkfifo(trap / "pyproject.toml")
    assert settings.nearest(trap / "mine") == (None, [])


def test_file_that_a_variable_names_is_read_whoever_can_write_to_it(
    trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap.chmod(0o777)
    monkeypatch.setenv("JOBQ_PYPROJECT", str(trap / "pyproject.toml"))
    found = settings.nearest(trap / "mine").project
    assert found and settings.read_project(found)["imports"] == ["evil"]


def test_data_do_not_go_beside_a_file_that_is_refused(trap: Path) -> None:
    assert data_folder(None, trap / "mine") == trap / ".jobq"
    trap.chmod(0o777)
    assert data_folder(None, trap / "mine") == trap / "mine" / ".jobq"


@pytest.mark.parametrize("mode", [0o777, 0o1777])
@pytest.mark.parametrize("start", [("-P", "-m"), ("-m",)])
def test_no_module_is_imported_from_a_working_folder_that_everybody_can_write_to(
    trap: Path, client: Any, start: tuple[str, ...], mode: int
) -> None:
    # The `jobq` script runs as with -P; without it, Python itself puts the folder on the path.
    def command(*args: str) -> subprocess.CompletedProcess[str]:
        return ran(*start, "jobq", *args, "--import", "evil", cwd=trap, JOBQ_URL=client.url)

    trap.chmod(mode)
    for args in (("worker", "--burst"), ("enqueue", "evil.job")):
        ended = command(*args)
        assert (ended.returncode, MARK in ended.stderr) == (2, False), ended.stderr
        assert f"can't import modules from {trap}: every user can write to it" in ended.stderr
    trap.chmod(0o700)
    assert MARK in command("enqueue", "evil.job").stderr


@needs_root
def test_enqueue_imports_no_module_of_a_strangers_folder_that_nobody_named(
    redis: Any, server: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "mail.py").write_text("open('reached', 'w')")
    given_away(folder)
    words = ("enqueue", "mail.send", "a", "--queue", "default", "--url", server.url)
    for start in (("-P", "-m", "jobq"), ("-m", "jobq")):
        ended = ran(*start, *words, cwd=folder)
        assert ended.returncode == 0, ended.stderr
        assert f"mail of {folder} is not imported: the folder belongs to" in ended.stderr
    assert not (folder / "reached").exists()
    assert redis.llen("jobq:{default}:ready") == 2
    # Who names the module trusts it.
    ran("-P", "-m", "jobq", *words, "--import", "mail", cwd=folder)
    assert (folder / "reached").exists()


def test_module_is_imported_from_there_when_the_user_names_the_folder(
    trap: Path, client: Any
) -> None:
    trap.chmod(0o777)
    args = ("-P", "-m", "jobq", "enqueue", "evil.job", "--import", "evil")
    path = os.pathsep.join([str(ROOT), str(trap)])
    assert MARK in ran(*args, cwd=trap, JOBQ_URL=client.url, PYTHONPATH=path).stderr


def test_file_that_a_variable_names_and_that_is_not_there_is_refused(
    trap: Path, client: Any
) -> None:
    gone = str(trap / "gone.toml")
    ended = ran("-m", "jobq", "queues", cwd=trap, JOBQ_URL=client.url, JOBQ_PYPROJECT=gone)
    assert ended.returncode == 2
    assert ended.stderr == f"jobq: {gone} can't be read: No such file or directory\n"


def test_trust_names_each_fault() -> None:
    def found(mode: int, uid: int, gid: int = 0) -> os.stat_result:
        return os.stat_result((stat.S_IFREG | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))

    you = os.geteuid()
    assert trust.fault(found(0o644, you)) == trust.fault(found(0o644, 0)) == ""
    assert "everybody" in trust.fault(found(0o646, you))
    assert "belongs to uid 54322" in trust.fault(found(0o600, 54322))
    assert "group" in trust.fault(found(0o660, you, 54322))
    # The group's bits are then what single users, whom they don't name, may do at most.
    assert "group" in trust.fault(found(0o660, you, os.getegid()), has_acl=True)
