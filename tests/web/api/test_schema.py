"""The JSON API writes and describes records by the types of their fields."""

from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Meta

from jobq.records import JsonRecord, Moment, MomentOrZero, words
from jobq.web.api.schema import ListPage, described, writer_of
from tests import tools

Draft202012Validator = tools.library("jsonschema").Draft202012Validator


class Part(JsonRecord):
    """One part.

    Attributes:
        name: Its name, which may
            contain anything.
    """

    name: str
    at: Moment
    ended_at: MomentOrZero
    count: int
    share: float | None = None
    state: Annotated[str, words(("on", "off"))] = "on"


class PartPage(ListPage[Part], kw_only=True):
    """A page of parts."""

    counts: Annotated[dict[str, int], Meta(description="How many.")]


PART = Part("a\udcff", 1_764_000_000_250, 0, 2**53)


def test_a_record_is_written_with_its_fields_in_order_when_values_do_not_fit_json():
    written = writer_of(PartPage)(PartPage(items=[PART], counts={"\ud800": -(2**60)}))
    assert written == {
        "items": [{
            "name": "a\\udcff", "at": "2025-11-24T16:00:00.250Z", "ended_at": None, "count": "9007199254740992",
            "share": None, "state": "on",
        }],
        "next": None,
        "counts": {"\\ud800": "-1152921504606846976"},
    }  # fmt: skip
    assert list(written["items"][0]) == list(Part.__struct_fields__)


@pytest.mark.parametrize("number", [0, -1, 2**53 - 1, -(2**53) + 1])
def test_a_whole_number_stays_a_number_when_javascript_can_hold_it(number):
    assert writer_of(int)(number) == number


def test_a_reply_is_valid_by_its_description_when_fields_are_missing_or_unknown():
    [schema], components = described([PartPage], are_replies=True)
    validator = Draft202012Validator({**schema, "components": {"schemas": components}})
    reply = writer_of(PartPage)(PartPage(items=[PART], next="x", counts={}))
    validator.validate(reply)
    for field in Part.__struct_fields__:
        part = {name: value for name, value in reply["items"][0].items() if name != field}
        assert not validator.is_valid({**reply, "items": [part]})
    assert not validator.is_valid({**reply, "items": [{**reply["items"][0], "state": "broken"}]})
    assert not validator.is_valid({**reply, "items": [{**reply["items"][0], "at": 5}]})


def test_descriptions_come_from_docstrings_when_fields_are_described():
    _, components = described([PartPage], are_replies=True)
    part, page = components["Part"], components["PartPage"]
    assert part["description"] == "One part." and page["description"] == "A page of parts."
    assert part["properties"]["name"]["description"] == "Its name, which may contain anything."
    assert page["properties"]["counts"]["description"] == "How many."
    assert "`cursor`" in page["properties"]["next"]["description"]


def test_a_record_takes_fields_from_another_object_when_they_are_not_given():
    assert Part.of(PART, name="b", count=1) == Part("b", PART.at, 0, 1)
    with pytest.raises(AttributeError):
        Part.of(object(), name="b")
