"""Errors that keep a worker from starting. They are printed on stderr even if the application's logging drops them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

from jobq.errors import masked_text
from jobq.worker import logger

_STDERR = 2


def tell(text: str) -> None:
    """Log an error. If no logging handler writes to stderr, also print it there."""
    logger.error("%s", text)
    if not logger.isEnabledFor(logging.ERROR) or not any(map(_writes_to_stderr, _handlers())):
        print(f"jobq: {masked_text(text)}", file=sys.stderr, flush=True)


def _handlers() -> Iterator[logging.Handler]:
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None


def _writes_to_stderr(handler: logging.Handler) -> bool:
    if handler.level > logging.ERROR or not isinstance(handler, logging.StreamHandler):
        return False
    try:
        return bool(handler.stream.fileno() == _STDERR)
    except (AttributeError, OSError, ValueError):
        return False
