"""Names and their jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import ConfigError, JobAlreadyRegisteredError, JobNotFoundError
from jobq.jobs.codec import encode
from jobq.jobs.executor import Executor
from jobq.jobs.registry import Registry, job
from jobq.limits.concurrency_limit import ConcurrencyLimit
from jobq.limits.rate_limit import RateLimit
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


def _loaded(text: str, path: Path, name: str = "loaded") -> dict[str, Any]:
    """The names of a module, loaded from a file."""
    path.write_text(text)
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        exec(compile(text, path, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return vars(module)


@pytest.fixture(autouse=True)
def modules_as_they_were() -> Iterator[None]:
    """Each test ends with the modules that it began with."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("loaded", "mail", "jobs.mail", "twice"):
            del sys.modules[name]


DECORATED = """
def timed(function):
    def wrapper(*args):
        return function(*args)
    return wrapper

@timed
def charge(): return "charge"

@timed
def refund(): return "refund"
"""


def test_second_closure_of_one_decorator_is_refused_with_both_places(
    registry: Registry, tmp_path: Path
):
    path = tmp_path / "shop.py"
    names = _loaded(DECORATED, path)
    job(registry=registry)(names["charge"])
    with pytest.raises(JobAlreadyRegisteredError) as refused:
        job(registry=registry)(names["refund"])
    text = str(refused.value)
    assert f"loaded.charge ({path}:7)" in text and f"loaded.refund ({path}:10)" in text
    assert "name=" in text and "functools.wraps" in text
    assert registry.get("loaded.timed.<locals>.wrapper").function() == "charge"


def test_jobs_of_one_decorator_with_wraps_have_their_own_names(registry: Registry, tmp_path: Path):
    text = DECORATED.replace(
        "    def wrapper", "    from functools import wraps\n    @wraps(function)\n    def wrapper"
    )
    names = _loaded(text, tmp_path / "shop.py")
    for name in ("charge", "refund"):
        job(registry=registry)(names[name])
    assert registry.names() == ["loaded.charge", "loaded.refund"]


FACTORY = """
import threading
from functools import partial

class Target:
    def __init__(self, to): self.to, self.lock = to, threading.Lock()

def send_to(target, copies=1, *, how="mail"):
    def send(extra=copies): return (target, how)
    return send
"""


@pytest.mark.parametrize(
    "change",
    ["b", 1, None, ["a", {"deep": ["b"]}], "Target('b')", "partial(print, 'b')", "send_to('b')"],
)
def test_closures_over_different_values_are_different(
    registry: Registry, tmp_path: Path, change: Any
):
    names = _loaded(FACTORY, tmp_path / "mail.py")
    is_code = isinstance(change, str) and change.endswith(")")
    first, second = ("a", change) if not is_code else (change.replace("'b'", "'a'"), change)
    if is_code:
        first, second = eval(first, names), eval(second, names)
    job(registry=registry)(names["send_to"](first))
    with pytest.raises(JobAlreadyRegisteredError):
        job(registry=registry)(names["send_to"](second))


@pytest.mark.parametrize("options", [{"copies": 2}, {"how": "fax"}])
def test_closures_with_different_defaults_are_different(
    registry: Registry, tmp_path: Path, options: dict[str, Any]
):
    names = _loaded(FACTORY, tmp_path / "mail.py")
    job(registry=registry)(names["send_to"]("a"))
    with pytest.raises(JobAlreadyRegisteredError):
        job(registry=registry)(names["send_to"]("a", **options))


@pytest.mark.parametrize(
    "target",
    ["'a'", "['a', {'deep': ('b', 1.5)}]", "Target('a')", "partial(print, 'a')", "send_to(Target('a'))",
     "threading.Lock()", "Target", "{1, 2}"],
)  # fmt: skip
def test_equal_closures_are_the_same_when_their_module_is_loaded_again(
    registry: Registry, tmp_path: Path, target: str
):
    path = tmp_path / "mail.py"
    for name in ("jobs.mail", "mail"):
        names = _loaded(FACTORY, path, name)
        made = job(name="mail.send", registry=registry)(names["send_to"](eval(target, names)))
    assert registry.get("mail.send") is made


def test_closure_over_itself_is_compared_to_its_end(registry: Registry):
    def make(step: int) -> Any:
        def count(n: int) -> int:
            return count(n - step) if n else 0

        return count

    for _ in range(2):
        job(registry=registry)(make(1))
    with pytest.raises(JobAlreadyRegisteredError):
        job(registry=registry)(make(2))


def test_second_function_of_one_name_in_one_file_is_refused(tmp_path: Path):
    one = "@job(registry=registry)\ndef send(): return 1\n"
    text = "from jobq.jobs.registry import Registry, job\nregistry = Registry()\n" + one + one
    with pytest.raises(JobAlreadyRegisteredError, match=r"twice\.py:3.*twice\.py:5"):
        _loaded(text, tmp_path / "twice.py", "twice")


def test_edited_function_replaces_what_it_was_when_its_file_is_loaded_again(
    registry: Registry, tmp_path: Path
):
    path = tmp_path / "edited.py"
    for text in ("def send(): return 1\n", "\n\ndef send(): return 2\n"):
        made = job(registry=registry)(_loaded(text, path)["send"])
    assert registry.get("loaded.send") is made and made() == 2


def test_module_runs_as_main_and_by_name_with_the_jobs_of_a_decorator(tmp_path: Path):
    (tmp_path / "script.py").write_text(
        "from functools import wraps\nfrom jobq import job\n"
        "def plain(function):\n    @wraps(function)\n    def run(*args): return function(*args)\n    return run\n"
        "@job\n@plain\ndef send(): ...\n"
        "if __name__ == '__main__':\n    import script\n    print(script.send.name)\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    shown = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={"PYTHONPATH": root},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.strip() == "script.send"


def test_method_is_refused_with_the_remedy(registry: Registry):
    with pytest.raises(ConfigError, match=r"method Mailer\.send: .*@staticmethod"):

        class Mailer:
            @job(registry=registry)
            def send(self, to: str) -> None: ...

    class Others:
        @staticmethod
        @job(registry=registry)
        def send(to: str) -> str:
            return to

    assert Others().send("a") == "a"
    assert len(registry) == 1


def test_limits_of_one_name_are_refused_when_they_differ(registry: Registry):
    job(name="a", registry=registry, limits=[RateLimit("stripe", "100/m")])(lambda: 1)
    job(name="b", registry=registry, limits=[RateLimit("stripe", "100/m")])(lambda: 2)
    for other in (
        RateLimit("stripe", "5/s"),
        RateLimit("stripe", "100/m", margin=1),
        ConcurrencyLimit("stripe", 100),
    ):
        with pytest.raises(ConfigError, match=r"job c declares .*stripe.* job a declares .*100/m"):
            job(name="c", registry=registry, limits=[other])(lambda: 3)
    # A redeclared job may have changed its own.
    changed = Registry()
    for rate in ("100/m", "5/s"):
        job(name="a", registry=changed, limits=[RateLimit("stripe", rate)])(_nothing)


def _nothing() -> None:
    """A job without work."""


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
