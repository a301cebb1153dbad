"""Python processes of tests start without OpenTelemetry's metrics, which redis-py loads wherever they are installed.

That is a quarter of the time that a command of jobq takes to start. Whoever else imports them has them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

METRICS, READER = "opentelemetry.sdk.metrics", "redis.observability.providers"


class WithoutMetrics(MetaPathFinder):
    """Lets redis-py believe that there are none; it is asked first."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Refuse the metrics while the module of redis-py that tries them is loading."""
        if (
            name == METRICS
            and READER in sys.modules
            and not hasattr(sys.modules[READER], "OTEL_AVAILABLE")
        ):
            raise ModuleNotFoundError(f"no {name} for redis-py in tests", name=name)


sys.meta_path.insert(0, WithoutMetrics())
