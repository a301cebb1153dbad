"""Sources of a dashboard's history: the events on the server, or a lake for older events."""

from __future__ import annotations

from jobq.errors import ConfigError
from jobq.queue.directory import listed_queues
from jobq.web.history import Span, StreamHistory
from jobq.web.lake import LakeHistory
from jobq.web.site import Site

#: Longer ranges are read from the lake, if there is one, because the server has only the latest events.
LONG_MS = 3_600_000
SOURCES = ("auto", "events", "lake")


class HistorySources:
    """The two sources of a dashboard's history.

    Attributes:
        lake: None if the dashboard has no lake.
    """

    def __init__(self, site: Site) -> None:
        client, settings = site.client, site.settings
        self.events = StreamHistory(client, lambda: listed_queues(client).names)
        self.lake = (
            LakeHistory(settings.lake, settings.storage, server=settings.source)
            if settings.lake
            else None
        )

    def choose(self, span: Span, wanted: str = "auto") -> StreamHistory | LakeHistory:
        """Return the source for a range of time. Raises ConfigError if `wanted` is the lake and there is no lake."""
        if wanted == "lake" and self.lake is None:
            raise ConfigError("this dashboard has no lake; start 'jobq web' with --lake PATH")
        if wanted == "events" or self.lake is None:
            return self.events
        return self.lake if wanted == "lake" or span.until - span.since > LONG_MS else self.events

    def close(self) -> None:
        """Stop the process that reads the lake."""
        if self.lake is not None:
            self.lake.close()


def sources_of(site: Site) -> HistorySources:
    """Return the sources of this dashboard's history."""
    return site.part(HistorySources, HistorySources)
