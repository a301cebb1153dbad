"""Names and the jobs behind them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import ConfigError, JobAlreadyRegisteredError, JobNotFoundError
from jobq.jobs.codec import encode
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.queue.types import Ending, Message


def test_job_is_named_by_module_and_function(registry: Registry):
    @job(registry=registry)
    def send() -> None: ...

    assert registry.names() == [
        f"{__name__}.test_job_is_named_by_module_and_function.<locals>.send"
    ]
    assert registry.get(send.name) is send
    assert send.name in registry and len(registry) == 1 and list(registry) == [send]


def test_unknown_name_says_where_to_look(registry: Registry):
    with pytest.raises(
        JobNotFoundError, match=r"no job 'mail\.send' here; is its module in --import\?"
    ):
        registry.get("mail.send")


def test_second_function_of_one_name_is_refused(registry: Registry):
    job(name="mail.send", registry=registry)(lambda: 1)

    def other() -> None: ...

    with pytest.raises(
        JobAlreadyRegisteredError, match=r"mail\.send.*test_registry\.py:\d+.*name="
    ):
        job(name="mail.send", registry=registry)(other)


def test_same_function_again_replaces_what_it_was(registry: Registry, tmp_path: Path):
    module = tmp_path / "reloaded.py"
    module.write_text("def send(): return 1\n")
    jobs = []
    for _ in range(2):
        names: dict[str, Any] = {"__name__": "reloaded"}
        exec(compile(module.read_text(), module, "exec"), names)
        jobs.append(job(registry=registry)(names["send"]))
    assert registry.get("reloaded.send") is jobs[1]


@pytest.mark.parametrize("name", ["with space", "x" * 201, "tab\t", "bell\x07", 3])
def test_name_that_cannot_stand_in_a_record_is_refused(registry: Registry, name: Any):
    with pytest.raises(ConfigError, match="job name"):
        job(name=name, registry=registry)(lambda: 1)


@pytest.mark.parametrize("how", [["script.py"], ["-m", "script"]])
def test_job_of_a_script_is_named_as_import_would_name_it(tmp_path: Path, how: list[str]):
    (tmp_path / "script.py").write_text(
        "from jobq import job\n@job\ndef send(): ...\nif __name__ == '__main__': print(send.name)\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    shown = subprocess.run(
        [sys.executable, *how],
        cwd=tmp_path,
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == "script.send"


names = st.one_of(
    st.sampled_from(
        [
            "os.system",
            "os:system",
            "builtins.eval",
            "subprocess.Popen",
            "jobq.cli",
            "sys.modules",
            "antigravity",
        ]
    ),
    st.text(min_size=1, max_size=200, alphabet=st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from(sorted(sys.stdlib_module_names)), min_size=1, max_size=3).map(
        ".".join
    ),
)


@settings(max_examples=1000)
@given(names)
def test_name_in_a_message_never_imports_anything(name: str):
    executor = Executor(Registry())
    before = set(sys.modules)
    ended = executor.resolve("low", Message("m", encode(name), 99, 0, 1, "g", "t", 0))
    assert isinstance(ended, Ending) and ended.outcome == "unknown"
    assert set(sys.modules) == before
