"""The small language of `jobq enqueue`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from jobq.cli.arguments import Given, from_json, from_lines, from_words, moment_of
from jobq.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a.jpg", "a.jpg"), ("200", 200), ("2.5", 2.5), ("true", True), ("null", None), ("", ""),
        ('["x", 1]', ["x", 1]), ('{"a": 1}', {"a": 1}), ('"200"', "200"), ('"a=b"', "a=b"),
        ("007", "007"), ("NaN", "NaN"), ("None", "None"), ("http://x/?a=b", "http://x/?a=b"), ("1,2", "1,2"),
    ],
)  # fmt: skip
def test_word_is_json_where_it_is_json_else_text(word: str, value: Any) -> None:
    assert from_words([word]) == Given([value])


def test_word_with_a_name_is_a_keyword_argument() -> None:
    assert from_words(["a.jpg", "width=200", "note=a=b", 'id="7"']) == Given(
        ["a.jpg"], {"width": 200, "note": "a=b", "id": "7"}
    )


def test_keyword_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'width' was passed twice"):
        from_words(["width=1", "width=2"])


def test_line_is_an_array_of_arguments_or_an_object() -> None:
    lines = [b'["a.jpg", 1]\n', b"\n", b'{"args": [1], "kwargs": {"w": 2}, "mid": "m"}', b"{}"]
    assert list(from_lines(lines)) == [Given(["a.jpg", 1]), Given([1], {"w": 2}, "m"), Given()]


@pytest.mark.parametrize(
    "line", [b"3", b'"a"', b'{"arg": [1]}', b'{"args": 1}', b'{"mid": 1}', b"{", b"\xff"]
)
def test_line_that_is_no_call_is_refused_with_its_number(line: bytes) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        list(from_lines([b"[]", line]))


def test_args_json_must_be_an_array() -> None:
    assert from_json("[1]", "--args-json") == [1]
    with pytest.raises(ConfigError, match="not a JSON array"):
        from_json('{"a": 1}', "--args-json")


def test_time_is_iso_or_epoch_seconds() -> None:
    assert moment_of("1700000000") == 1_700_000_000
    assert moment_of("2026-11-21T08:00+00:00") == datetime.fromisoformat("2026-11-21T08:00+00:00")
    naive = moment_of("2026-11-21T08:00")
    assert isinstance(naive, datetime) and naive.tzinfo is not None
    with pytest.raises(ConfigError, match="not a time"):
        moment_of("tomorrow")
