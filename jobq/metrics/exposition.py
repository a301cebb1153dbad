"""Prints metrics in the formats of Prometheus and OpenMetrics, with the package prometheus_client.

If the package isn't installed, the page explains how to install it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from jobq import extras
from jobq.metrics.names import Family, Metric
from jobq.metrics.serving import Answer, Page, PageRequest, logger
from jobq.worker.counters import Histogram

#: Environment variable with the folder where prometheus_client keeps the metrics of an application's processes.
APPLICATION = "PROMETHEUS_MULTIPROC_DIR"


def metrics_page(collect: Callable[[], Iterable[Family]], application: str = "") -> Page:
    """Return the page /metrics.

    Args:
        collect: Returns the metrics. Each request for the page calls this function.
        application: The folder to which children write the application's own metrics.
    """

    def page(request: PageRequest) -> Answer:
        try:
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import choose_encoder
        except ImportError:
            remedy = extras.install("metrics")
            return Answer(f"metrics need prometheus_client: {remedy}\n".encode(), 501)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(collect))
        if application:
            registry.register(_Application(Path(application)))
        encode, kind = choose_encoder(request.accept)
        return Answer(encode(registry), kind=kind)

    return page


class _Application:
    """Collects the application's own prometheus_client metrics, which each child writes to a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all children. Gauges of exited children are left out."""
        from prometheus_client import CollectorRegistry, multiprocess

        untyped: Any = multiprocess
        try:
            for pid in {
                path.stem.rpartition("_")[2] for path in self._folder.glob("gauge_live*.db")
            }:
                if not os.path.exists(f"/proc/{pid}") and os.path.exists("/proc"):
                    untyped.mark_process_dead(int(pid), str(self._folder))
            collector = untyped.MultiProcessCollector(CollectorRegistry(), str(self._folder))
            yield from list(collector.collect())
        except Exception as error:
            logger.warning("can't read the application's metrics in %s: %s", self._folder, error)

    def describe(self) -> list[Any]:
        return []


class _Collector:
    def __init__(self, collect: Callable[[], Iterable[Family]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Any]:
        for family in self._collect():
            yield _as_known_there(family)

    def describe(self) -> list[Any]:
        """Return no metrics, so that prometheus_client doesn't check all names at each request."""
        return []


def _as_known_there(family: Family) -> Any:
    from prometheus_client import core

    metric = family.metric
    if metric.kind == "histogram":
        made: Any = core.HistogramMetricFamily(metric.name, metric.says, labels=metric.labels)
        for labels, value in family.rows.items():
            assert isinstance(value, Histogram)
            made.add_metric(labels, _cumulated(metric, value), value.sum)
        return made
    if metric.kind == "info":
        made = core.InfoMetricFamily(metric.name.removesuffix("_info"), metric.says)
        for labels in family.rows:
            made.add_metric((), dict(zip(metric.labels, labels, strict=True)))
        return made
    kind = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
    made = kind(metric.name, metric.says, labels=metric.labels)
    for labels, value in family.rows.items():
        made.add_metric(labels, value)
    return made


def _cumulated(metric: Metric, histogram: Histogram) -> list[tuple[str, int]]:
    bounds = [*map(str, metric.buckets), "+Inf"]
    return list(zip(bounds, accumulate(histogram.buckets), strict=True))
