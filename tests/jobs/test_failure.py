"""What is kept of an error."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from jobq.jobs import failure
from jobq.jobs.failure import (
    MAX_TEXT,
    class_name,
    clean,
    fingerprint,
    place,
    summary,
    traceback_text,
)
from jobq.jobs.registry import Registry


def caught(function: object, *args: object) -> BaseException:
    try:
        function(*args)  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def reason(error: BaseException, why: str = "") -> str:
    return failure.reason(error, why, traceback_text(error))


def first(value: object) -> None:
    secret = "hunter2"
    raise ValueError(f"bad {value}, not {secret[:0]}") from None


def second(value: object) -> None:
    raise ValueError(f"bad {value}")


def recursive(depth: int) -> None:
    if not depth:
        raise RuntimeError("deep")
    recursive(depth - 1)


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_place_is_the_innermost_frame_outside_jobq():
    line = recursive.__code__.co_firstlineno + 2
    assert place(caught(recursive, 3)) == f"jobs/test_failure.py:{line} in recursive"
    inside_jobq = caught(failure.one_column, 5)
    assert "test_failure.py" in place(inside_jobq) and "in caught" in place(inside_jobq)


def test_place_is_empty_when_the_error_was_never_raised():
    assert place(ValueError("x")) == ""


def test_fingerprint_is_that_of_class_and_place_not_of_values():
    assert fingerprint(caught(first, 1)) == fingerprint(caught(first, 2))
    assert fingerprint(caught(first, 1)) != fingerprint(caught(second, 1))
    assert (
        fingerprint(ValueError("x")) == fingerprint(ValueError("y")) != fingerprint(TypeError("x"))
    )


def test_class_is_named_with_its_module():
    assert class_name(ValueError()) == "ValueError"
    assert class_name(Broken()) == f"{__name__}.Broken"


def test_reason_starts_with_what_and_why_and_has_no_locals():
    text = reason(caught(first, 7), "attempt 2 of 2")
    assert text.startswith(
        "ValueError: bad 7, not  (attempt 2 of 2)\n\nTraceback (most recent call last):"
    )
    assert "in first" in text
    assert "secret = " not in text


@pytest.mark.parametrize(
    "error", [ValueError("x" * 10_000), caught(recursive, 500), caught(second, "é" * 5000)]
)
def test_reason_is_bounded(error: BaseException):
    assert len(reason(error, "why").encode()) <= MAX_TEXT
    assert len(traceback_text(error).encode()) <= MAX_TEXT
    assert len(summary(error)) <= 500


def test_reason_keeps_the_end_of_a_long_traceback():
    error = caught(recursive, 500)
    assert "RuntimeError: deep" in reason(error).splitlines()[-1]


def test_error_without_text_is_described_nevertheless():
    assert "can't be shown" in summary(Broken())
    assert "can't be shown" in reason(Broken())
    assert summary(ValueError()) == "ValueError"


def test_chain_of_causes_is_told():
    def chained() -> None:
        try:
            first(1)
        except ValueError as error:
            raise KeyError("outer") from error

    text = reason(caught(chained))
    assert "bad 1" in text and "direct cause" in text


def through_jobq() -> None:
    """Fail in a call that jobq makes for the user's code."""
    try:
        list(map(partial(checked, 3), [1]))
    except ExceptionGroup as group:
        raise KeyError("outer") from group


def checked(*values: object) -> None:
    try:
        Registry().add(first)  # type: ignore[arg-type]
    except AttributeError as error:
        raise ExceptionGroup("several", [error, caught(second, 2)]) from error


def test_traceback_leaves_out_frames_of_jobq_in_the_whole_chain():
    text = traceback_text(caught(through_jobq))
    package = str(Path(sys.modules["jobq"].__file__ or "").parent)
    assert package not in text
    assert text.count(__file__) >= 5
    for part in (
        "in through_jobq",
        "in checked",
        "in second",
        "AttributeError",
        "bad 2",
        "KeyError",
    ):
        assert part in text


def test_traceback_keeps_frames_of_a_package_whose_name_begins_with_jobq(tmp_path: Path):
    package = Path(sys.modules["jobq"].__file__ or "").parent
    code = compile("def fail():\n    raise OSError('x')\n", f"{package}_shop/mail.py", "exec")
    names: dict[str, object] = {}
    exec(code, names)
    assert "jobq_shop/mail.py" in traceback_text(caught(names["fail"]))


def test_traceback_masks_passwords_and_escapes_control_characters():
    def connect() -> None:
        raise OSError("no route to redis://anna:hunter2@db \x1b[31m \x1f")

    text = traceback_text(caught(connect))
    assert "hunter2" not in text and "\x1b" not in text and "\x1f" not in text
    assert "redis://" in text and "in connect" in text


def test_traceback_is_empty_when_the_error_can_not_be_described():
    class Odd(Exception):
        @property
        def __cause__(self) -> BaseException:
            raise RuntimeError("no cause")

    assert traceback_text(Odd()) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a\x1fb", "a\\x1fb"),
        ("\ud800", "\\ud800"),
        ("é\n\tü", "é\n\tü"),
        ("\u202e", "\\u202e"),
    ],
)
def test_clean_escapes_what_could_harm_a_terminal_or_a_record(text: str, shown: str):
    assert clean(text) == shown


def test_reason_of_a_text_of_megabytes_is_made_of_its_beginning_and_end():
    text = reason(caught(second, "x" * 3_000_000 + " redis://u:secret@h"))
    assert text.startswith("ValueError: bad xxx")
    assert "secret" not in text
    assert len(text) <= MAX_TEXT
