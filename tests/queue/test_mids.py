"""Mids that jobq makes."""

from __future__ import annotations

import re

import pytest

from jobq.queue import mids

PLAIN = re.compile(r"\w{14}", re.ASCII)


@pytest.mark.parametrize("byte", [b"\0", b"\xfb", b"\xff"])
def test_mid_is_one_word_whatever_its_bits(monkeypatch: pytest.MonkeyPatch, byte: bytes) -> None:
    monkeypatch.setattr(mids, "urandom", lambda count: byte * count)
    for mid in (mids.new_mid(), mids.mid_of(byte * 12), *mids.MadeMids(1024)):
        assert PLAIN.fullmatch(mid)


def test_mids_of_one_call_differ() -> None:
    assert len(set(mids.MadeMids(1024))) == 1024
