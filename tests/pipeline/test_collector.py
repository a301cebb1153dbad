"""The collector is off within, and afterwards as it was before."""

from __future__ import annotations

import gc

import pytest

from jobq.pipeline.engine import gc_off


@gc_off()
def fails():
    assert not gc.isenabled()
    raise OSError("gone")


def test_collector_is_on_again_after_an_error():
    with pytest.raises(OSError, match="gone"):
        fails()
    assert gc.isenabled()


def test_collector_stays_off_where_it_was_off():
    with gc_off():
        with gc_off():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
