"""The key of a call: said outright, an argument, or a function of the arguments."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from jobq.errors import ConfigError
from jobq.jobs.job import Job
from jobq.jobs.registry import Registry, job


def send(customer: Any, text: str = "", *, region: str | None = "eu") -> None: ...


def made(registry: Registry, **options: Any) -> Job[..., Any]:
    return job(name="send", registry=registry, **options)(send)


@pytest.mark.parametrize(
    ("key", "args", "kwargs", "found"),
    [("customer", ("acme",), {}, "acme"), ("customer", (), {"customer": "acme"}, "acme"),
     ("customer", (7,), {}, "7"), ("customer", (UUID(int=1),), {}, str(UUID(int=1))),
     ("customer", (None,), {}, None), ("region", ("acme",), {}, "eu"),
     ("region", ("acme",), {"region": "us"}, "us"), ("region", ("acme",), {"region": None}, None),
     (lambda customer, text="", **_: f"{customer}/{text}", ("acme", "x"), {"region": "us"}, "acme/x"),
     (lambda *_, **__: None, ("acme",), {}, None)],
)  # fmt: skip
def test_key_is_an_argument_or_a_function_of_the_arguments(
    registry: Registry, key: Any, args: Any, kwargs: Any, found: str | None
):
    assert made(registry, key=key).key_of(args, kwargs) == found


def test_key_said_outright_wins_over_the_declared_one(registry: Registry):
    declared = made(registry, key="customer", ordered=True)
    outright = declared.options(key="acme")
    assert outright.key_of((7,), {}) == "acme"
    assert outright.options_with("acme") == {"ordered": True, "key": "acme"}
    assert declared.options(key=lambda customer, *_: customer * 2).key_of((7,), {}) == "14"
    with pytest.raises(
        ConfigError, match="ordered=True of send applies only to messages with a key"
    ):
        declared.options(key=None)
    assert declared.options(key=None, ordered=False).settings.key is None


@pytest.mark.parametrize("value", ["", "x" * 129, "a\nb", True, 1.5, b"acme", ["acme"]])
def test_argument_that_cannot_be_a_key_is_refused_with_its_value(registry: Registry, value: Any):
    with pytest.raises(ConfigError, match=r"key=.* can't be used; "):
        made(registry, key="customer").key_of((value,), {})


def test_argument_that_the_job_does_not_take_is_refused_when_it_is_declared(registry: Registry):
    with pytest.raises(
        ConfigError, match="'custmer' is not an argument of send, which takes customer, text, reg"
    ):
        made(registry, key="custmer")
    with pytest.raises(ConfigError, match="key=7 can't be used"):
        made(registry, key=7)
