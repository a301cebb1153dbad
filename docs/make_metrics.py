"""Writes `docs/reference/metrics.md` from the table of the code: `python docs/make_metrics.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from jobq.metrics.names import EXPORTER, OUTBOX, WORKER, Metric

PAGE = Path(__file__).with_name("reference") / "metrics.md"
OPENING = """# Metrics

[Monitoring](../operating/monitoring.md) explains how to scrape these metrics.
"""


def rows(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in metrics:
        labels = " ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.says} |"


def page() -> str:
    """Return the page."""
    parts = [OPENING, "## Of a worker", "", *rows(WORKER.values()), ""]
    for metric in WORKER.values():
        if metric.buckets:
            bounds = ", ".join(f"{bound:g}" for bound in metric.buckets)
            parts += [f"Buckets of `{metric.name}` in seconds: {bounds}.", ""]
    parts += ["## Of the exporter", "", *rows(EXPORTER.values()), ""]
    parts += ["## Of a relay of an outbox", "", *rows(OUTBOX.values()), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
