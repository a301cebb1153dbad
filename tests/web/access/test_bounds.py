"""Section 11.11: how large a request may be, and how many of them one user may make."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobq.errors import ConfigError
from jobq.web.access.bounds import (
    BURST,
    MOST_SCANS,
    MOST_USERS,
    PER_SECOND,
    RequestRate,
    ScanSlots,
    TooManyScansError,
    checked_range,
)
from jobq.web.access.gate import MOST_BODY, MOST_QUERY_KEYS, MOST_URL
from tests.web.access.gated import gated

SAME = {"sec-fetch-site": "same-origin"}


def test_a_body_has_a_mebibyte_at_most():
    client = gated()
    assert client.post("/", content=b"x" * MOST_BODY, headers=SAME).json()["bytes"] == MOST_BODY
    assert client.post("/", content=b"x" * (MOST_BODY + 1), headers=SAME).status_code == 413


def test_a_body_of_unknown_length_is_counted():
    def parts(number):
        yield from (b"x" * 65_536 for _ in range(number))

    client = gated()
    assert client.post("/", content=parts(16), headers=SAME).status_code == 200
    reply = client.post("/", content=parts(400), headers=SAME)
    assert reply.status_code == 413 and "1048576 bytes" in reply.text


@pytest.mark.parametrize("length", ["-1", "1e9", "x", "٣", "9" * 5_000])
def test_a_length_that_is_none_is_refused(length):
    headers = {**SAME, "content-length": length.encode()}
    assert gated().post("/", content=b"", headers=headers).status_code in (400, 413)


def test_an_address_has_8_kib_and_50_parameters():
    client = gated()
    assert client.get("/?q=" + "x" * (MOST_URL - 4)).status_code == 200
    assert client.get("/?q=" + "x" * MOST_URL).status_code == 414
    assert client.get("/" + "é" * (MOST_URL // 6 + 1)).status_code == 414
    keys = "&".join(f"k{n}=1" for n in range(MOST_QUERY_KEYS + 1))
    assert client.get("/?" + keys.rpartition("&")[0]).status_code == 200
    assert client.get("/?" + keys).status_code == 400


def test_a_user_makes_30_requests_a_second():
    now = [0.0]
    rate = RequestRate(lambda: now[0])
    assert [rate.take("anna") for _ in range(int(BURST) + 1)] == [True] * int(BURST) + [False]
    assert rate.take("bob")
    now[0] = 1.0
    assert sum(rate.take("anna") for _ in range(100)) == PER_SECOND
    now[0] = 1_000.0
    assert sum(rate.take("anna") for _ in range(100)) == BURST
    for number in range(MOST_USERS + 5):
        rate.take(f"user{number}")
    assert len(rate._left) == MOST_USERS


def test_four_scans_run_at_once():
    slots = ScanSlots()
    held = [slots.taken() for _ in range(MOST_SCANS)]
    for one in held:
        one.__enter__()
    with pytest.raises(TooManyScansError, match="try again"), slots.taken():
        pass
    held[0].__exit__(None, None, None)
    with pytest.raises(ZeroDivisionError), slots.taken():
        raise ZeroDivisionError
    with slots.taken():
        pass


def test_a_range_has_400_days_at_most():
    until = datetime(2026, 11, 23, tzinfo=UTC)
    assert checked_range(until - timedelta(days=400), until)
    for days, says in [(401, "take 400"), (0, "before it begins"), (-1, "before it begins")]:
        with pytest.raises(ConfigError, match=says):
            checked_range(until - timedelta(days=days), until)
