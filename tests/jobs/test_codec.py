"""Calls as bytes and back."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import json
import pathlib
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobq.errors import CodecError
from jobq.jobs.codec import (
    HARD_LIMIT,
    INT_MAX,
    INT_MIN,
    LIMIT,
    MAX_DEPTH,
    Overrides,
    UnknownVersionError,
    decode,
    decode_any,
    encode,
    encode_plain,
)

Point = namedtuple("Point", "x y")
Colour = enum.Enum("Colour", "RED")
Level = enum.IntEnum("Level", "LOW")
Word = enum.StrEnum("Word", "YES")


@dataclass
class Plain:
    x: int


class Text(str):
    __slots__ = ()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(INT_MIN, INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)  # fmt: skip


def test_envelope_leaves_out_fields_at_their_default():
    assert encode("mail.send") == b'{"job":"mail.send"}'
    full = encode("a.b", (1,), {"k": None}, 5, {"h": "x"}, Overrides(retries=0, timeout=None))
    assert json.loads(full) == {
        "job": "a.b", "args": [1], "kwargs": {"k": None}, "enqueued_at": 5, "headers": {"h": "x"},
        "options": {"retries": 0, "timeout": None},
    }  # fmt: skip


def test_envelope_of_another_language_is_read():
    envelope = decode(
        b' {"v": 1, "extra": [1], "enqueued_at": 7, "kwargs": {"a": 1e3}, "job": "x.y"}\n'
    )
    assert (envelope.job, envelope.args, envelope.kwargs, envelope.enqueued_at) == (
        "x.y",
        [],
        {"a": 1000.0},
        7,
    )


@given(
    st.lists(json_values, max_size=5),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=4),
)
def test_call_comes_back_as_it_was(args: list[Any], kwargs: dict[str, Any]):
    envelope = decode(encode("m.f", args, kwargs, 3, {"trace": "é"}))
    assert (envelope.job, envelope.args, envelope.kwargs) == ("m.f", args, kwargs)
    assert repr(envelope.args) == repr(args)  # 1 and 1.0 and True are told apart


def test_tuples_arrive_as_lists():
    assert decode(encode("m.f", ((1, (2,)),))).args == [[1, [2]]]


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ({1}, "pass a list"),
        (frozenset((1,)), "pass a list"),
        (b"raw", "as bytes"),
        (bytearray(b"raw"), "base64"),
        (memoryview(b"raw"), "base64"),
        (datetime.datetime.now(), "annotate its parameter as datetime"),
        (datetime.date.today(), "as date"),
        (datetime.time(), "as time"),
        (datetime.timedelta(1), "as timedelta"),
        (uuid.uuid4(), "as UUID"),
        (decimal.Decimal("1.1"), "as Decimal"),
        (fractions.Fraction(1, 3), "pass str(value)"),
        (pathlib.Path("/x"), "pass str(value)"),
        (Colour.RED, "as its class"),
        (Level.LOW, "as its class"),
        (Word.YES, "as its class"),
        (Plain(1), "as its class"),
        (msgspec.defstruct("S", ["x"])(1), "as its class"),
        (Point(1, 2), "pass list(value)"),
        (OrderedDict(a=1), "pass dict(value)"),
        (Text("x"), "pass str(value)"),
        (float("nan"), "leave it out"),
        (float("inf"), "leave it out"),
        (INT_MAX + 1, "pass str(value)"),
        (INT_MIN - 1, "pass str(value)"),
        ({1: "x"}, "use str keys"),
        (1j, "value.real"),
        (range(3), "pass list(value)"),
        (int, "pass its name"),
        (len, "plain values"),
        (object(), "plain values"),
        (nested(MAX_DEPTH + 1), "flatter"),
        ("\ud800", "lone surrogates"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_json_cannot_carry_is_refused_with_the_remedy(value: Any, remedy: str):
    for args, kwargs in (((1, value), {}), ((), {"width": value}), (([{"x": value}],), {})):
        with pytest.raises(CodecError) as refused:
            encode("mail.send", args, kwargs)
        assert remedy in str(refused.value)
        assert "mail.send" in str(refused.value)


def test_refusal_names_the_argument_and_the_way_to_it():
    with pytest.raises(CodecError, match=r"argument 2 of m\.f\['rows'\]\[1\] is a set"):
        encode("m.f", (1, {"rows": [1, {2}]}))
    with pytest.raises(CodecError, match=r"argument 1 of m\.f is an object, which"):
        encode("m.f", (object(),))
    with pytest.raises(CodecError, match=r"argument 'when' of m\.f is a datetime\.date"):
        encode("m.f", (), {"when": datetime.date(2026, 1, 1)})


def test_cycle_is_refused_not_followed_for_ever():
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(CodecError, match="64 levels"):
        encode("m.f", (cycle,))


def test_deepest_allowed_nesting_comes_back():
    assert decode(encode("m.f", (nested(MAX_DEPTH),))).args == [nested(MAX_DEPTH)]


def test_deeper_content_of_others_is_refused():
    deep = b'{"job":"m.f","args":[' + b"[" * 65 + b"]" * 65 + b"]}"
    with pytest.raises(CodecError, match="64 levels"):
        decode(deep)
    bottomless = b'{"job":"m.f","args":' + b"[" * 500_000
    with pytest.raises(CodecError):
        decode(bottomless)


def test_size_is_limited_to_256_kib_and_at_most_1_mib():
    assert len(encode("m.f", ("x" * (LIMIT - 50),))) <= LIMIT
    with pytest.raises(CodecError, match="Store the data elsewhere"):
        encode("m.f", ("x" * LIMIT,))
    assert encode("m.f", ("x" * LIMIT,), limit=2 * LIMIT)
    with pytest.raises(CodecError, match="1,048,576"):
        encode("m.f", ("x" * HARD_LIMIT,), limit=10 * HARD_LIMIT)
    with pytest.raises(CodecError, match="1,048,576"):
        decode(b" " * (HARD_LIMIT + 1))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b"{}", b"\xff", b'{"job":', b'{"job":1}', b'{"job":""}', b'{"job":"x","args":{}}',
        b'{"job":"x","kwargs":[]}', b'{"job":"x","headers":{"a":1}}', b'{"job":"x","enqueued_at":-1}',
        b'{"job":"x","enqueued_at":1e999}', b'{"job":"x","args":[NaN]}', b'{"job":"x","args":["\\ud800"]}',
        b'{"job":"x","options":{"retries":-1}}', b'{"job":"x","options":{"timeout":"soon"}}',
        b'{"job":"' + b"x" * 201 + b'"}', b'{"job":"x"}{"job":"y"}', b'{"job":"x","args":[' + b"9" * 5000 + b"]}",
    ],
)  # fmt: skip
def test_content_that_is_no_call_is_refused(content: bytes):
    with pytest.raises(CodecError):
        decode(content)


@pytest.mark.parametrize("content", [b'{"v":2,"job":"x"}', b'{"v":2,"call":["x"]}'])
def test_newer_version_is_told_apart_from_rubbish(content: bytes):
    with pytest.raises(UnknownVersionError, match="version 2"):
        decode(content)


@settings(max_examples=500)
@given(st.binary(max_size=300))
@example(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
@example(b"[" * 100_000)
def test_decode_lets_only_codec_error_escape_from_any_bytes(content: bytes):
    for read in (decode, decode_any):
        try:
            read(content)
        except CodecError as error:
            assert len(str(error)) < 500


@settings(max_examples=500)
@given(json_values, st.data())
def test_decode_lets_only_codec_error_escape_from_mutated_calls(value: Any, data: st.DataObject):
    content = bytearray(encode("module.function", (value,), {"k": value}, 1, {"h": "v"}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        change = data.draw(st.sampled_from(("flip", "drop", "double", "cut")))
        if change == "flip":
            content[at] = data.draw(st.integers(0, 255))
        elif change == "drop" and len(content) > 1:
            del content[at]
        elif change == "double":
            content[at:at] = content[at : at + 9]
        else:
            del content[max(at, 1) :]
    try:
        assert isinstance(decode(bytes(content)).job, str)
    except CodecError:
        pass


def test_values_decode_to_nothing_but_plain_types():
    shown = decode(b'{"job":"x","args":[{"__class__":"os.system","$type":"x"}]}').args
    assert shown == [{"__class__": "os.system", "$type": "x"}]


def test_encode_plain_refuses_like_an_argument():
    with pytest.raises(CodecError, match=r"the result of m\.f is a set"):
        encode_plain({1}, "the result of m.f")
    with pytest.raises(CodecError, match="surrogates"):
        encode_plain("\ud800", "the result of m.f")
