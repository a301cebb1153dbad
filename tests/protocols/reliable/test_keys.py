"""Names of keys: what may be called how, and what shares a slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.client.scripts import folder
from jobq.errors import ConfigError
from jobq.protocols.reliable import ReliableQueue, keys
from jobq.protocols.reliable.calls import ReliableCalls

NAMES = st.text(
    st.characters(exclude_characters="{}", categories=["L", "N", "P", "S"]), min_size=1, max_size=20
)


def test_keys_look_like_this():
    assert keys.places("reliable", "mails")[0] == "reliable:{mails}:undelivered"
    assert keys.places("reliable", "{shop}mails")[-1] == "reliable:{shop}mails:meta"


@given(NAMES, NAMES)
def test_name_is_read_back_from_its_keys(client_of_none, name, tag):
    for one in (name, f"{{{tag}}}{name}", f"{name}{{{tag}}}"):
        [tickets] = client_of_none.tickets([one])
        assert client_of_none.name_of(tickets.encode()) == one


@given(NAMES, NAMES)
def test_different_names_have_different_keys(name, other):
    if name != other:
        assert not set(keys.places("reliable", name)) & set(keys.places("reliable", other))


@given(NAMES, NAMES, NAMES)
def test_names_with_a_tag_have_keys_of_their_own(name, tag, other):
    one, two = f"{{{tag}}}{name}", f"{name}{{{tag}}}"
    for another in (other, tag, name):
        for tagged in (one, two):
            assert not set(keys.places("reliable", tagged)) & set(keys.places("reliable", another))


def test_tag_without_a_name_is_refused_since_its_keys_are_another_queue_s(client):
    with pytest.raises(ConfigError, match="share its messages with 'shop'"):
        ReliableQueue(client).push("{shop}", "a")


@pytest.fixture(scope="module")
def client_of_none():
    return ReliableCalls(object(), "reliable")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a\n", "\x00", "{", "}", "{}", "{a", "a}", "{a}{b}", "{{a}}", "a" * 129],
)
def test_name_that_can_not_be_used_is_told_with_the_remedy(name):
    with pytest.raises(ConfigError, match=r"use 1-128 printable .* \{shop\}mails"):
        keys.checked_key(name)


@pytest.mark.parametrize("ns", ["", "a:b", "a b", "{a}"])
def test_wrong_first_part_is_refused(client, ns):
    with pytest.raises(ConfigError, match="ns"):
        ReliableQueue(client, ns)


def test_names_of_one_slot():
    keys.of_one_slot(["{shop}a", "b{shop}", "shop"])
    with pytest.raises(ConfigError, match="different slots"):
        keys.of_one_slot(["a", "b"])


def test_page_of_keys_names_every_place():
    listed = [line.split()[0] for line in (keys.__doc__ or "").splitlines() if "  " in line.strip()]
    assert set(keys.PLACES) | {"call:<caller>"} <= set(listed)


def test_every_script_is_a_verb_or_serves_one():
    scripts = {path.stem for path in (folder() / "reliable").glob("[a-z]*.lua")}
    assert {name for name in scripts if not hasattr(ReliableQueue, name)} == {"rest"}


def test_two_first_parts_are_two_worlds(client):
    one, other = ReliableQueue(client, "one"), ReliableQueue(client, "other")
    one.push("q", "a")
    assert (one.length("q"), other.length("q")) == (1, 0)
    assert repr(one) == "ReliableQueue(ns='one')"
