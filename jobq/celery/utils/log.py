"""The logger of tasks."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """Return the logger of this name. `jobq.current().logger` adds the message's id and attempt."""
    return logging.getLogger(name)
