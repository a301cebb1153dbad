"""Arguments and results arrive as their annotations say, or are refused before they are enqueued."""

from __future__ import annotations

import dataclasses
import enum
import logging
import typing
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from jobq.errors import CodecError
from jobq.jobs.codec import decode
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, job
from jobq.queue.queue import Queue

T = typing.TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    count: int
    since: datetime


class Point(msgspec.Struct):
    x: float
    tags: set[str] = set()


class Options(typing.TypedDict):
    width: int


class Pair(typing.NamedTuple):
    left: int
    right: date


class Order(pydantic.BaseModel):
    id: uuid.UUID
    lines: list[Line] = []


class Page(msgspec.Struct, typing.Generic[T]):
    items: list[T]


@dataclasses.dataclass
class Unfinished:
    thing: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Own:
    """A class that JSON doesn't know."""


ID = uuid.UUID("6e2e2a4a-c607-482c-989c-93a8abb23250")
NOON = datetime(2026, 11, 27, 12, 0, 0, 123456, tzinfo=UTC)
#: Annotation, value.
VALUES: list[tuple[Any, Any]] = [
    (datetime, NOON),
    (datetime, datetime(2026, 1, 1)),
    (date, date(2026, 1, 31)),
    (time, time(12, 30, 1)),
    (timedelta, timedelta(days=1, microseconds=7)),
    (uuid.UUID, ID),
    (Decimal, Decimal("1.20")),
    (Colour, Colour.RED),
    (bytes, b"\x00\xff"),
    (set[int], {1, 2}),
    (frozenset[str], frozenset("a")),
    (Line, Line(1, NOON)),
    (Point, Point(1.5, {"a"})),
    (Options, {"width": 3}),
    (Pair, Pair(1, date(2026, 1, 1))),
    (Order, Order(id=ID, lines=[Line(1, NOON)])),
    (Page[date], Page([date(2026, 1, 1)])),
    (list[Line], [Line(1, NOON)]),
    (dict[uuid.UUID, Decimal], {ID: Decimal(1)}),
    (tuple[int, str], (1, "a")),
    (datetime | None, None),
    (int | datetime, NOON),
    (typing.Literal["a", "b"], "b"),
    (float, 3),
    (Any, {"a": [1, None]}),
]


def typed(annotation: Any, registry: Registry, **options: Any) -> Job[..., Any]:
    """A job that takes and returns a value of this annotation."""

    def echo(value):
        return value

    echo.__annotations__ = {"value": annotation, "return": annotation}
    return job(name="echo", registry=registry, result_ttl=60, **options)(echo)


def run_next(queue: Queue, registry: Registry) -> Any:
    """Run one message as a worker does; return its call, or its ending if it can't be called."""
    [message] = queue.dequeue(1).messages
    executor = Executor(registry, worker="here")
    call = executor.resolve(queue.name, message)
    queue.finish([executor.run(call) if isinstance(call, Call) else call])
    return call


@pytest.fixture
def queue(client: Any) -> Queue:
    return Queue("default", client)


@pytest.mark.one_server
@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=repr)
def test_argument_and_result_come_back_as_they_were(annotation, value, registry, client, queue):
    echo = typed(annotation, registry, client=client)
    receipt = echo.enqueue(value)
    seen = run_next(queue, registry)
    assert (seen.args[0], type(seen.args[0])) == (value, type(value))
    result = receipt.result(timeout=60)
    assert (result, type(result)) == (value, type(value))
    assert echo.receipt(receipt.mid).result(timeout=60) == value


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "5", "argument 'value' of echo doesn't fit its annotation int: Expected `int`, got `str`"),
        (int, True, "Expected `int`, got `bool`"),
        (str, NOON, "is a datetime, but the annotation str would change this value"),
        (datetime, "2026-01-01T00:00:00Z", "is a str, but the annotation datetime would change this value"),
        (set[int], [1], "is a list, but the annotation set[int] would change this value"),
        (Line, {"count": 1, "since": NOON}, "is a dict"),
        (list[Line], [Line(1, NOON), Line("2", NOON)], "Expected `int`, got `str`; at `value[1].count`"),
        (Line, Line(1, "2026-01-01"), "Invalid RFC3339"),
        (Line, Line(1, "2026-01-01T00:00:00"), ".since is a str"),
        (dict[str, Point], {"a": Point(1, ["x"])}, "echo.a.tags is a list"),
        (Line, Line(1, "noon"), "datetime; write it as 2026-12-24T18:00:00+01:00; at `value.since`"),
        (date, "noon", "date; write it as 2026-12-24"),
        (time, "noon", "time; write it as 18:00:00"),
        (timedelta, "an hour", "duration; write it as PT90S"),
        (uuid.UUID, "7", "UUID; write it as 123e4567-e89b-12d3-a456-426614174000"),
        (Order, ID, "doesn't fit its annotation Order"),
        (list[int], Own(), "Own can't be represented in JSON"),
    ],
)  # fmt: skip
def test_argument_that_would_arrive_otherwise_is_refused(annotation, value, said, registry):
    echo = typed(annotation, registry)
    with pytest.raises(CodecError) as refused:
        echo.encoded((value,), {})
    assert said in str(refused.value)


def test_argument_of_any_kind_is_converted_by_its_own_annotation(registry):
    @job(registry=registry)
    def f(at: date, /, *more: date, named: date, **rest: timedelta) -> None: ...

    day, span = date(2026, 1, 1), timedelta(1)
    given = (day, day), {"named": day, "other": span}
    plain = f.encoded(*given)
    assert plain == (["2026-01-01"] * 2, {"named": "2026-01-01", "other": "P1D"})
    args, kwargs = f.decoded(*plain)
    assert (tuple(args), kwargs) == given


def test_argument_is_converted_when_calls_with_other_types_needed_no_conversion(registry):
    @job(registry=registry)
    def f(a: int | str, b: timedelta | None = None, *rest: int) -> None: ...

    for _ in range(2):
        for args, plain in [
            (("x",), ["x"]),
            ((1, timedelta(1)), [1, "P1D"]),
            ((1, None, 2), [1, None, 2]),
        ]:
            assert list(f.encoded(args, {})[0]) == plain
        for wrong in [(1.5,), (True,), (1, None, "x")]:
            with pytest.raises(CodecError, match="fit"):
                f.encoded(wrong, {})


def test_keyword_has_the_type_of_its_own_parameter_and_not_that_of_the_rest(registry):
    @job(registry=registry)
    def f(at: date, /, plain=0, **rest: timedelta) -> None: ...

    day, span = date(2026, 1, 1), timedelta(1)
    given = (day,), {"plain": 1, "at": span}
    plain = f.encoded(*given)
    assert plain == (["2026-01-01"], {"plain": 1, "at": "P1D"})
    args, kwargs = f.decoded(*plain)
    assert (tuple(args), kwargs) == given


def test_default_of_none_allows_none(registry):
    @job(registry=registry)
    def f(at: date = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert f.encoded((None,), {}) == ([None], {})


@pytest.mark.parametrize(
    "annotation", [Own, Unfinished, list[Own], str | datetime, Callable[[], int], "Missing"]
)
def test_annotation_that_cannot_be_decoded_counts_as_none_and_is_logged_once(
    annotation, registry, caplog
):
    with caplog.at_level(logging.INFO, "jobq"):
        echo = typed(annotation, registry)
        for _ in range(2):
            assert echo.encoded(([1],), {}) == (([1],), {})
    said = [record.getMessage() for record in caplog.records if "argument" in record.getMessage()]
    [line] = said
    assert line.startswith("echo: the annotation of argument 'value' can't be used for decoding")


def test_annotation_that_cannot_be_decoded_is_logged_at_declaration_and_not_again(registry, caplog):
    with caplog.at_level(logging.INFO, "jobq"):
        echo = typed(list[Own], registry)
        assert [record.getMessage().split(" can't")[0] for record in caplog.records] == [
            "echo: the annotation of argument 'value'", "echo: the annotation of its result",
        ]  # fmt: skip
        assert echo.encoded(([1],), {}) == (([1],), {})
    assert len(caplog.records) == 2


def test_annotation_is_not_logged_at_declaration_when_a_name_may_be_defined_later(
    registry, caplog, monkeypatch
):
    with caplog.at_level(logging.INFO, "jobq"):

        @job(registry=registry)
        def f(day: Later, unfinished: list[AlsoLater]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        typed(Unfinished, registry)
        assert not caplog.records
        monkeypatch.setitem(globals(), "Later", date)
        monkeypatch.setitem(globals(), "AlsoLater", date)
        assert f.encoded((NOON.date(), []), {}) == (["2026-11-27", []], {})
    assert not caplog.records


def test_other_annotations_count_when_one_names_what_is_not_there(registry):
    @job(registry=registry)
    def f(day: date, thing: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert f.encoded((date(2026, 1, 1), 1), {}) == (["2026-01-01", 1], {})


@pytest.mark.one_server
def test_typed_false_leaves_annotations_alone(registry, client):
    echo = typed(date, registry, typed=False, client=client)
    assert echo.encoded(("x",), {}) == (("x",), {})
    with pytest.raises(CodecError, match=r"argument 'value' of echo is a datetime\.date"):
        echo.enqueue(date(2026, 1, 1))


@pytest.mark.one_server
def test_message_of_another_program_is_dead_when_it_does_not_fit(registry, client, queue):
    typed(list[date], registry)
    mid = queue.enqueue(b'{"job":"echo","args":[["soon"]]}').mid
    run_next(queue, registry)
    [dead] = queue.admin.dead(mid=mid)
    assert "argument 'value' of echo doesn't fit its annotation list[datetime.date]" in dead.reason


@pytest.mark.one_server
def test_result_that_its_annotation_does_not_describe_arrives_as_json(registry, client, queue):
    @job(registry=registry, client=client, result_ttl=60)
    def f() -> dict[str, date]:
        return ["no dict"]  # type: ignore[return-value]

    receipt = f.enqueue()
    run_next(queue, registry)
    assert receipt.result(timeout=60) == ["no dict"]


@pytest.mark.one_server
def test_calls_of_a_unique_job_are_compared_by_typed_arguments(registry, client):
    @job(registry=registry, client=client, unique=True)
    def f(order: Order, day: date = date(2026, 1, 1)) -> None: ...

    first, second = f.enqueue(Order(id=ID)), f.enqueue(Order(id=ID))
    assert (first.action, second.action) == ("added", "exists")
    assert f.enqueue(Order(id=ID), date(2026, 1, 2)).action == "added"
    assert f.unique_mid(Order(id=ID)) == first.mid


@pytest.mark.one_server
def test_function_that_makes_the_key_gets_values_as_the_caller_gave_them(registry, client, queue):
    @job(registry=registry, client=client, key=lambda order: order.id)
    def f(order: Order) -> None: ...

    assert f.prepared(queue, (Order(id=ID),), {})[2] == str(ID)


@pytest.mark.one_server
def test_message_holds_plain_json(registry, client, queue):
    typed(Sequence[date], registry, client=client).enqueue((date(2026, 1, 1),))
    [message] = queue.dequeue(1).messages
    assert decode(message.content).args == [["2026-01-01"]]
