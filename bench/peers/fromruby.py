"""The benchmark's no-op job under the name that Ruby pushes it by."""

from __future__ import annotations

import jobq
from bench.peers import handlers

noop = jobq.job(name="Noop")(handlers.noop)
