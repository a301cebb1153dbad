"""`@job(batch=…)` takes a function of calls, and options for many calls."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

import jobq
from jobq.errors import CodecError, ConfigError
from jobq.jobs.batch_executor import BatchExecutor
from jobq.jobs.calls import Calls, batch_of
from jobq.jobs.codec import FLOW_HEADER, encode
from jobq.jobs.registry import Registry
from jobq.queue.types import Message

if TYPE_CHECKING:
    from jobq import Calls as Hidden


@dataclass
class Mail:
    to: str
    day: date


class Places:
    """Counts so many slots for each job."""

    def __init__(self, name: str) -> None:
        self.name, self.rank, self.declaration = name, 0, "1"

    admit = aadmit = None


def declared(registry: Registry, function: Any, **options: Any) -> Any:
    return jobq.job(**{"batch": 10, "name": "mails.send", "registry": registry, **options})(
        function
    )


def test_parameters_are_those_of_one_call(registry: Registry):
    def send(calls: Calls[Mail, int]) -> None: ...

    made = declared(registry, send)
    assert list(made.parameters) == ["arg1", "arg2"]
    made.check_arguments((Mail("a", date(2026, 1, 2)), 3), {})
    with pytest.raises(TypeError, match="missing a required argument: 'arg2'"):
        made.args(Mail("a", date(2026, 1, 2)))
    with pytest.raises(CodecError, match="argument 'arg1'"):
        made.encoded(("text", 3), {})
    plain, _ = made.encoded((Mail("a", date(2026, 1, 2)), 3), {})
    assert made.decoded(list(plain), {})[0] == [Mail("a", date(2026, 1, 2)), 3]


def test_function_without_types_takes_any_arguments(registry: Registry):
    def send(calls): ...

    def typed(calls: Calls[...]) -> None: ...

    for number, function in enumerate((send, typed)):
        made = declared(registry, function, name=f"any{number}")
        made.check_arguments((1, "a"), {"more": 2})


def test_result_is_typed_by_the_returned_list(registry: Registry):
    def days(calls: Calls[int]) -> list[date]: ...

    made = declared(registry, days, result_ttl=60)
    assert made.types.decoded_result("2026-01-02") == date(2026, 1, 2)


def test_direct_call_takes_calls_of_its_arguments(registry: Registry):
    def send(calls: Calls[str, int]) -> str:
        calls.done(0, "x")
        calls.fail(1, ValueError("bad"))
        return "".join(call.args[0] for call in calls)

    made = declared(registry, send)
    calls = Calls.of(made.args("a", 1), made.args("b", 2), made.args("c", 3))
    assert made(calls) == "abc"
    assert (calls.results, str(calls.errors[1]), calls.open) == ({0: "x"}, "bad", [2])
    assert [call.mid for call in calls[:2]] == ["call-1", "call-2"]
    assert repr(calls) == "<3 calls of mails.send, 1 open>"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch": 0}, "batch=0 is out of range; use a whole number from 1 to 200"),
        ({"batch": 201}, "batch=201 is out of range"),
        ({"linger": "2m"}, "linger"),
        ({"batch": True}, "batch=True is out of range"),
        ({"key": "arg1", "ordered": True}, "ordered=True of mails.send and batch=10"),
        ({"keep_logs": 60}, "keep_logs=60"),
        (
            {"batch": 200, "limits": [Places("a"), Places("b"), Places("c")]},
            "use batch=170 or less",
        ),
    ],
)
def test_declaration_is_refused_with_the_remedy(
    registry: Registry, options: dict[str, Any], error: str
):
    with pytest.raises(ConfigError) as raised:
        declared(registry, lambda calls: None, **options)
    assert error in str(raised.value)


def test_function_is_refused_unless_it_takes_calls(registry: Registry):
    def two(calls: Calls[int], more: int) -> None: ...

    def wrong(calls: list[int]) -> None: ...

    def hidden(calls: Hidden[int]) -> None: ...

    def undefined(calls: Calls[Nowhere]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, error in (
        (two, "must take all calls as its only argument"),
        (wrong, "write Calls"),
        (hidden, "not under TYPE_CHECKING"),
        (undefined, "isn't defined when the job is declared"),
    ):
        with pytest.raises(ConfigError, match=error):
            declared(registry, function)


def test_linger_needs_a_batch(registry: Registry):
    with pytest.raises(ConfigError, match=r"linger=1 of mails.send .* also pass batch="):
        jobq.job(name="mails.send", linger="1s", registry=registry)(lambda: None)


@pytest.mark.parametrize("option", ["timeout", "hard_timeout", "key", "batch", "linger"])
def test_option_of_the_function_is_refused_for_one_message(registry: Registry, option: str):
    made = declared(registry, lambda calls: None)
    with pytest.raises(ConfigError, match=option):
        made.options(**{option: 5 if option != "key" else "a"})


def test_timeout_of_another_programs_message_is_ignored(registry: Registry):
    from jobq.jobs.codec import Overrides

    made = declared(registry, lambda calls: None, timeout=30)
    changed = made.with_overrides(Overrides(timeout=0.1, retries=2))
    assert (changed.settings.timeout, changed.settings.retries) == (30, 2)


def test_calls_of_a_batch_have_one_key(registry: Registry):
    def send(calls: Calls[str, date]) -> None: ...

    def resolved(job: Any, *args: Any, headers: Any = None) -> Any:
        content = encode(job.name, *job.encoded(args, {}), 1, headers)
        message = Message("m", content, 1, 0, 1, "g", "t", 0)
        return BatchExecutor(registry).resolve("low", message)

    day = date(2026, 1, 2)
    by_name = declared(registry, send, key="arg1")
    by_day = declared(registry, send, name="by_day", key=lambda _, day: day.isoformat())
    without = declared(registry, send, name="without")
    assert batch_of(resolved(by_name, "acme", day)) == ("mails.send", "acme")
    assert batch_of(resolved(by_day, "acme", day)) == ("by_day", "2026-01-02")
    member = {FLOW_HEADER: "x"}
    assert batch_of(resolved(by_day, "acme", day, headers=member)) == ("by_day", "2026-01-02")
    assert batch_of(resolved(without, "acme", day)) == ("without", None)
    failing = declared(registry, send, name="failing", key=lambda *_: 1 / 0)
    assert batch_of(resolved(failing, "acme", day)) == ("failing", "\0m")
