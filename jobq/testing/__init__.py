"""Test jobs on a private server, with a clock that tests can move. Use the pytest plugin, or `kit()` with other
frameworks.

Names are imported at first use, because pytest loads the plugin in every project where jobq is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobq.testing.attempts import RunResult
    from jobq.testing.draining import DrainResult
    from jobq.testing.harness import Kit
    from jobq.testing.plain import kit, kit_for, run_job, running
    from jobq.testing.servers import allow_server
    from jobq.testing.waiting import EnqueuedCall

__all__ = [
    "DrainResult", "EnqueuedCall", "Kit", "RunResult", "allow_server", "kit", "kit_for", "run_job", "running",
]  # fmt: skip

_HOME = {
    "DrainResult": "draining", "EnqueuedCall": "waiting", "Kit": "harness", "RunResult": "attempts",
    "allow_server": "servers",
    "kit": "plain", "kit_for": "plain", "run_job": "plain", "running": "plain",
}  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'jobq.testing' has no attribute {name!r}")
        value = getattr(import_module(f"jobq.testing.{_HOME[name]}"), name)
        globals()[name] = value
        return value
