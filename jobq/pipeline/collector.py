"""Turn the garbage collector off while there are many rows: they have no cycles, and it would visit them all."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_off() -> Iterator[None]:
    """Turn the collector off for the length of the context."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
