"""Runs jobs: one supervisor process and a pool of forked child processes."""

from __future__ import annotations

import logging

logger = logging.getLogger("jobq.worker")
