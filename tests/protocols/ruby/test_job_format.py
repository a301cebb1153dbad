"""What becomes of a job that Ruby wrote, whatever it wrote."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobq.errors import CodecError
from jobq.jobs.codec import decode, read_refusal
from jobq.protocols.ruby.job_format import (
    UNREADABLE,
    allowed_retries,
    call_of,
    epoch_ms,
    read_back,
    read_job,
    refused_back,
)
from jobq.protocols.ruby.key_names import RubyQueueName

PLACE = RubyQueueName("sidekiq", "", "default")
WRAPPER = "Sidekiq::ActiveJob::Wrapper"
RESQUE = RubyQueueName("resque", "resque", "low")


def read(fields, ruby_queue=PLACE, names=None):
    arrival = read_job(ruby_queue, json.dumps(fields).encode(), "otherwise", names or {})
    assert not arrival.fault
    return arrival.mid, decode(arrival.content)


def test_call_is_the_class_with_its_args_under_the_jid():
    fields = {"class": "HardWorker", "args": [1, {"a": None}], "jid": "b4a577edbccf1d805744efa9"}
    mid, envelope = read(fields)
    assert (mid, envelope.job, envelope.args) == (fields["jid"], "HardWorker", fields["args"])
    assert envelope.options is None


def test_resque_job_has_the_mid_that_it_is_given():
    mid, envelope = read({"class": "Archive", "args": []}, RESQUE)
    assert (mid, envelope.job) == ("otherwise", "Archive")


@pytest.mark.parametrize("jid", [None, 7, "", "x" * 129, "a\nb"])
def test_jid_that_is_no_mid_is_replaced(jid):
    assert read({"class": "A", "args": [], "jid": jid})[0] == "otherwise"


def test_name_is_mapped():
    _, envelope = read({"class": "Old::Name", "args": []}, names={"Old::Name": "app.jobs.new"})
    assert envelope.job == "app.jobs.new"


@pytest.mark.parametrize(
    ("noted", "ms"),
    [(1700000000.123, 1700000000123), (1700000000123, 1700000000123), (1700000000, 1700000000000),
     (0, 0), (-5, 0), (None, 0), ("1700000000", 0), (True, 0), (1e300, 0), (float("nan"), 0)],
)  # fmt: skip
def test_moment_is_read_in_seconds_and_in_ms(noted, ms):
    assert epoch_ms(noted) == ms


@pytest.mark.parametrize(
    ("fields", "retries"),
    [({}, None), ({"retry": True}, 25), ({"retry": 3}, 3), ({"retry": 0}, 0), ({"retry": False}, 0),
     ({"retry": None}, None), ({"retry": "true"}, 25), ({"retry": 3, "retry_count": 0}, 2),
     ({"retry": 3, "retry_count": 9}, 0), ({"retry": True, "retry_count": 4}, 20),
     ({"retry": 10**9}, 10_000), ({"retry": -4}, 0), ({"retry": 3, "retry_count": "x"}, 3)],
)  # fmt: skip
def test_retries_that_are_left_are_those_that_ruby_allows(fields, retries):
    assert allowed_retries(fields) == retries


def test_traces_and_tags_travel_in_headers():
    traces = {"sentry-trace": "1-2-1", "baggage": "a=b", "other": "x"}
    _, envelope = read(
        {"class": "A", "args": [], "tags": ["t"], "trace_propagation_headers": traces}
    )
    assert envelope.headers["sentry-trace"] == "1-2-1"
    assert envelope.headers["ruby-tags"] == '["t"]'
    assert "other" not in envelope.headers


@pytest.mark.parametrize("value", [True, "yes", 0])
def test_job_that_sidekiq_enterprise_encrypted_is_refused_with_the_reason(value):
    fields = {"class": "A", "args": [1, "BAhbB2kGSSIG"], "jid": "j", "encrypt": value}
    arrival = read_job(PLACE, json.dumps(fields).encode(), "otherwise", {})
    assert (
        arrival.mid == "j"
        and "Sidekiq Enterprise encrypted the last argument of A" in arrival.fault
    )
    assert "Sidekiq Enterprise" in read_refusal(arrival.content).why


@pytest.mark.parametrize(
    "fields", [{"encrypt": False}, {"encrypt": None}, {"encrypt": True, "args": []}]
)
def test_job_that_is_not_encrypted_runs(fields):
    _, envelope = read({"class": "A", "args": [1], **fields})
    assert envelope.job == "A"


def test_activejob_is_unwrapped_and_its_marks_are_gone():
    inner = {
        "job_class": "Mails::Welcome",
        "arguments": [
            {"_aj_globalid": "gid://app/User/1"},
            {"a": {"b": 1, "_aj_symbol_keys": ["b"]}, "_aj_hash_with_indifferent_access": True},
            {"_aj_serialized": "ActiveJob::Serializers::SymbolSerializer", "value": "now"},
            {
                "_aj_serialized": "ActiveJob::Serializers::RangeSerializer",
                "begin": {
                    "_aj_serialized": "ActiveJob::Serializers::DateSerializer",
                    "value": "2026-11-01",
                },
                "end": 7,
                "exclude_end": False,
            },
            {"locale": "de", "_aj_ruby2_keywords": ["locale"]},
        ],
    }
    fields = {
        "class": "Sidekiq::ActiveJob::Wrapper",
        "wrapped": "Mails::Welcome",
        "args": [inner],
        "jid": "j",
    }
    _, envelope = read(fields)
    assert envelope.job == "Mails::Welcome"
    range_ = {"begin": "2026-11-01", "end": 7, "exclude_end": False}
    assert envelope.args == ["gid://app/User/1", {"a": {"b": 1}}, "now", range_]
    assert envelope.kwargs == {"locale": "de"}


@pytest.mark.parametrize(
    "fields",
    [{"class": "A", "args": [1], "jid": "j", "retry": 3, "created_at": 1.5, "x": [1]},
     {"class": "Sidekiq::ActiveJob::Wrapper", "args": [{"job_class": "B", "arguments": [1]}], "jid": "j"}],
)  # fmt: skip
def test_job_is_read_back_whole(fields):
    arrival = read_job(PLACE, json.dumps(fields).encode(), "o", {})
    assert read_back(arrival.content) == (PLACE, fields)


def test_message_of_jobqs_own_is_no_ruby_job():
    assert read_back(b'{"job":"a.b"}') is None
    assert read_back(b"{bad") is None


@pytest.mark.parametrize(
    ("raw", "fault"),
    [(b"{bad", "not JSON"), (b"[1]", "not a JSON object"), (b"{}", "no class"), (b'{"class":7,"args":[]}', "no class"),
     (b'{"class":"A"}', "are not a list"), (b'{"class":"A","args":{}}', "are not a list"), (b"\xff", "not JSON"),
     (b'{"class":"A","args":[123456789012345678901234567890]}', "64 bits"),
     (b'{"class":"' + b"A" * 201 + b'","args":[]}', "201 characters"), (b"", "not JSON")],
)  # fmt: skip
def test_fault_says_what_is_wrong_and_the_bytes_are_kept(raw, fault):
    arrival = read_job(PLACE, raw, "otherwise", {})
    assert fault in arrival.fault
    assert refused_back(arrival.content) == (PLACE, raw, arrival.fault)
    with pytest.raises(CodecError, match=re.escape(arrival.fault)):
        decode(arrival.content)


def activejob(*arguments):
    return {"class": WRAPPER, "args": [{"job_class": "B", "arguments": list(arguments)}]}


def nested(levels):
    value = "innermost"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fields", "fault"),
    [({"class": "A", "args": nested(600)}, "deeper than 100 levels, which is Ruby's own limit"),
     (activejob(nested(600)), "deeper than 100 levels"), (activejob(nested(96)), "deeper than 64 levels"),
     ({"class": "A", "args": [], "x": nested(600)}, "deeper than 100 levels"),
     ({"class": "A", "args": nested(99)}, "deeper than 64 levels"), (activejob(2**64), "outside 64 bits"),
     ({"job": "app.jobs.delete", "args": [1]}, "the job has no class"),
     ({"job": "app.jobs.delete", "args": [1], "class": ["A"]}, "the job has no class"),
     ({"class": WRAPPER, "args": [{"job_class": "B", "arguments": "x"}]}, "arguments of B are not a list"),
     ({"class": UNREADABLE, "args": []}, "must have the original job as its only argument")],
    ids=str,
)  # fmt: skip
def test_job_that_cant_be_called_is_refused_in_words_and_can_never_run(fields, fault):
    raw = json.dumps(fields).encode()
    arrival = read_job(PLACE, raw, "otherwise", {})
    assert fault in arrival.fault
    assert refused_back(arrival.content)[1] == raw
    with pytest.raises(CodecError):
        decode(arrival.content)


def test_job_of_thousands_of_levels_is_refused():
    raw = b'{"class":"A","args":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    assert "nested too deep" in read_job(PLACE, raw, "o", {}).fault


@pytest.mark.parametrize(
    "mark", [{"_aj_globalid": "gid://app/User/1"}, {"_aj_serialized": "S", "value": 5}]
)
def test_keyword_arguments_are_keyword_arguments_whatever_marks_are_among_them(mark):
    _, envelope = read(activejob({**mark, "_aj_ruby2_keywords": []}))
    assert envelope.kwargs == mark


def test_numbers_as_long_as_64_bits_arrive_whole_and_longer_ones_beside_the_args_do_no_harm():
    numbers = [2**64 - 1, -(2**63)]
    _, envelope = read({"class": "A", "args": numbers, "x": 2**70, "retry_count": -(2**90)})
    assert envelope.args == numbers


def test_job_that_was_shown_as_unreadable_is_read_anew_when_it_comes_again():
    inner = json.dumps({"class": "A", "args": [1], "jid": "inner"})
    mid, envelope = read({"class": UNREADABLE, "args": [inner], "jid": "outer"})
    assert (mid, envelope.job, envelope.args) == ("outer", "A", [1])
    again = read_job(PLACE, json.dumps({"class": UNREADABLE, "args": ["{bad"]}).encode(), "o", {})
    assert refused_back(again.content)[1] == b"{bad"


def test_calls_are_equal_when_job_and_arguments_are():
    one, same, other = (
        read_job(PLACE, json.dumps({"class": "A", **fields}).encode(), "o", {}).content
        for fields in ({"args": [1], "retry": 3}, {"args": [1]}, {"args": [True]})
    )
    assert call_of(one) == call_of(same) != call_of(other)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
#: What a program that knows the formats would put there to do harm.
traps = st.sampled_from(
    [nested(600), nested(99), 2**64, -(2**200), "x" * 300, "\x1b[2J", WRAPPER, UNREADABLE, [UNREADABLE],
     [{"job_class": "B", "arguments": [nested(300)]}], [{"job_class": ["B"]}], [{"job_class": "", "arguments": 5}],
     [{"job_class": "B", "arguments": [{"_aj_ruby2_keywords": 5, "_aj_globalid": []}]}]]
)  # fmt: skip
names = st.sampled_from(
    ["class", "args", "jid", "retry", "retry_count", "created_at", "enqueued_at", "tags", "wrapped",
     "trace_propagation_headers", "retry_for", "job_class", "arguments", "job", "refused", "raw", "v"]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(names, json_values | traps))
def test_no_object_makes_reading_fail(fields):
    raw = json.dumps(fields).encode()
    arrival = read_job(PLACE, raw, "otherwise", {})
    assert 0 < len(arrival.mid) <= 128
    if not arrival.fault:
        assert decode(arrival.content).headers["ruby"] == "sidekiq :default"
        assert fields["class"] in (WRAPPER, decode(arrival.content).job)
        return
    assert refused_back(arrival.content) == (PLACE, raw, arrival.fault)
    with pytest.raises(CodecError):
        decode(arrival.content)


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_fail(raw):
    assert refused_back(read_job(PLACE, raw, "otherwise", {}).content)[1] == raw


def test_expiry_of_sidekiq_pro_is_honoured():
    for fields in ({}, {"retry": 3}):
        _, envelope = read({"class": "A", "args": [], "expiry": 1700000000.5, **fields})
        assert envelope.options.expires_at == 1_700_000_000_500
