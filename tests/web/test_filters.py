"""Filters of lists: accepted syntax, rejected syntax with its column, and matches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.observe.redaction import HIDDEN
from jobq.web.filters import MAX_CHARACTERS, FilterError, Row, parse, quoted

ROW = Row(
    "mails", "order:7", place="due", job="shop.mail.send", error="Timeout: no route\nTraceback", attempt=3,
    age_ms=3_600_000, due_ms=-5_000, worker="web-7:4711", kind="retry",
    arguments=lambda: (["a@b.example", {"user": {"id": 17, "tags": ["x", None]}}], {"retry": True, "key": HIDDEN,
    "a.b": 1.5}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True), ("  ", True), ("queue:mails", True), ("queue:mail", False), ("-queue:mails", False),
        ("queue:low,mails place:ready,due", True), ("queue:low mid:order:7", False), ("job:shop.*", True),
        ("job:*.mail.*", True), ("job:*mail", False), ("job:**send", True), ("mid:order*7", True),
        ("mid:order:7*7", False),
        ("mid:*", True), ('mid:"*"', False), ('mid:"order:7"', True), ("error:timeout*", True),
        ("error:*traceback*", False),
        ('error:"timeout: no route"', True), ('error:*"no route"', True), ("attempt:3", True), ("attempt:>3", False),
        ("attempt:>=3 attempt:<4", True), ("-attempt:>3", True), ("age:>59m age:<61m", True), ("due:<0s", True),
        ("due:>0s", False), ("crashes:0", True), ("kind:retry,dead", True), ('trace:""', True), ('worker:""', False),
        ("arg.0:a@b.example", True), ("arg.0:*@b.*", True), ("arg.1.user.id:17", True), ("arg.1.user.id:>16", True),
        ("arg.1.user.id:<16", False), ("arg.1.user.tags.0:x", True), ("arg.1.user.tags.1:null", True),
        ("arg.retry:true", True),
        ('arg."a.b":1.5', True), ("arg.2:x", False), ("-arg.2:x", True), ("arg.1.user.tags:x", False),
        ("arg.1.user:17", False), ("arg.0.user:17", False), ("arg.retry:>0", False),
    ],
)  # fmt: skip
def test_filter_matches(text: str, matches: bool):
    assert parse(text, may_see_arguments=True)(ROW) is matches


@pytest.mark.parametrize("text", ["arg.key:*", "-arg.key:x", "arg.key.0:x", "-arg.key.a.b:x"])
def test_hidden_value_meets_no_condition(text: str):
    assert parse(text, may_see_arguments=True)(ROW) is False


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("mails", 1, "'mails' has no key; write it as KEY:VALUE, for example mid:mails"),
        ("queue:a  x y:b", 10, "'x' has no key"),
        ("colour:red", 1, "'colour' is not a key of this list; use one of queue"),
        ("queue.a:b", 1, "'queue.a' is not a key"), ("mid:a arg:x", 7, "write arg.0:VALUE"), ("arg.:x", 1, "arg.NAME"),
        ("queue:", 7, "queue has no value"), ("queue:a,", 9, "queue has no value"), ("age:>", 5, "age has no value"),
        ("age:5m", 5, "write age:>5m or age:<5m"), ("age:>soon", 5, "'soon' is not a duration"),
        ("attempt:many", 9, "'many' is not a number"), ("attempt:>nan", 9, "is not a number"),
        ("attempt:*", 9, "'*' is not"),
        ("mid:a job:>b", 11, "job is text"), ("place:moon", 7, "place 'moon' is unknown; use one of ready, due"),
        ('mid:"a', 5, "unclosed quotation"), ('mid:"a\\', 5, "unclosed quotation"), ('a"b', 2, "unclosed quotation"),
        (" ".join(["mid:a"] * 21), 121, "at most 20 conditions"),
        ("mid:" + "a" * 500, 501, "504 characters; at most 500 are allowed"),
    ],
)  # fmt: skip
def test_mistake_is_named_with_its_column(text: str, column: int, says: str):
    with pytest.raises(FilterError, match=f"^column {column}: ") as caught:
        parse(text, may_see_arguments=True)
    assert caught.value.column == column
    assert says in str(caught.value)


def test_arguments_need_the_right_to_see_them():
    with pytest.raises(
        FilterError, match=r"column 7: filtering by 'arg\.' needs the 'arguments' right"
    ):
        parse("mid:a arg.0:x")
    assert parse("mid:a arg.0:x", may_see_arguments=True).terms[1].path


def test_list_knows_its_keys_alone():
    with pytest.raises(FilterError, match="'due' is not a key of this list; use one of mid, job"):
        parse("due:>1s", keys=("mid", "job"))


def test_what_a_filter_asks_of_queues_is_known_before_reading():
    asked = parse("queue:a,b -queue:b job:x.*")
    assert asked.only("queue") == {"a", "b"}
    assert parse("queue:a,b queue:b,c").only("queue") == {"b"}
    assert [asked.only("job"), asked.only("mid"), parse("queue:a,b*").only("queue")] == [None] * 3
    assert [name for name in "abc" if asked.may("queue", name)] == ["a"]
    assert [
        place for place in ("ready", "due", "dead") if parse("-place:d*").may("place", place)
    ] == ["ready"]


@given(st.text(max_size=40))
def test_quoted_value_means_that_text(value: str):
    row = replace(ROW, mid=value)
    asked = parse(f"mid:{quoted(value)}")
    assert asked(row) and asked.only("mid") == {value}


@given(st.text(alphabet='ab*:,"\\ ->=<.1m', max_size=60))
def test_any_text_is_read_or_refused_in_words(text: str):
    column = 1
    try:
        assert parse(text, may_see_arguments=True)(ROW) in (True, False)
    except FilterError as error:
        column = error.column
    assert 1 <= column <= len(text) + 1


@given(st.text("ab*", max_size=12), st.text("ab", max_size=20))
def test_stars_stand_for_any_text(pattern: str, text: str):
    def slow(parts: str, rest: str) -> bool:
        if not parts:
            return not rest
        if parts[0] == "*":
            return slow(parts[1:], rest) or (bool(rest) and slow(parts, rest[1:]))
        return rest[:1] == parts[0] and slow(parts[1:], rest[1:])

    found: Any = parse(f"mid:{pattern}") if pattern else parse('mid:""')
    assert found(replace(ROW, mid=text)) is slow(pattern.replace("**", "*"), text)


def test_no_pattern_takes_long():
    pattern = "*a" * 230
    assert not parse(f"error:{pattern}b*")(replace(ROW, error="a" * 200_000))
    assert MAX_CHARACTERS == 500
