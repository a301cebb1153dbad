"""Define every metric that jobq exports: its name, type, labels and meaning.

The code, the documentation and the alert rules use these definitions.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jobq.jobs.crashes import CAUSES
from jobq.worker.counters import OUTCOMES, RUN_BUCKETS, WAIT_BUCKETS, Histogram

Kind = Literal["counter", "gauge", "histogram", "info"]


class Metric(NamedTuple):
    """A metric that jobq exports.

    Attributes:
        buckets: Upper bounds of a histogram.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    says: str
    buckets: tuple[float, ...] = ()


#: The values of a metric, by the values of its labels.
Rows = dict[tuple[str, ...], float | Histogram]


class LakeBehind(NamedTuple):
    """How far a data lake is behind a queue's events.

    Attributes:
        events: Number of events that haven't been copied to the lake.
        overruns_in_s: Seconds until the queue's stream drops an event before it is copied.
        behind_s: Seconds since the latest copied event. Both times are None if all events or no events were copied.
    """

    events: int
    overruns_in_s: float | None = None
    behind_s: float | None = None


class Family(NamedTuple):
    """A metric with its values at one moment."""

    metric: Metric
    rows: Rows


def table(*metrics: Metric) -> dict[str, Metric]:
    """Return metrics by their names."""
    return {metric.name: metric for metric in metrics}


#: Metrics of a worker.
WORKER = table(
    Metric("jobq_attempts_total", "counter", ("queue", "job", "outcome"), f"Finished attempts: {', '.join(OUTCOMES)}."),
    Metric("jobq_run_seconds", "histogram", ("job",), "Run times of attempts.", tuple(map(float, RUN_BUCKETS))),
    Metric(
        "jobq_wait_seconds", "histogram", ("queue",), "Time from enqueue to the start of the first attempt.",
        tuple(map(float, WAIT_BUCKETS)),
    ),
    Metric("jobq_cpu_seconds_total", "counter", ("job",), "CPU time of attempts."),
    Metric("jobq_slots", "gauge", (), "Maximum number of concurrent jobs of this worker."),
    Metric("jobq_slots_busy", "gauge", (), "Running jobs."),
    Metric("jobq_child_rss_bytes", "gauge", ("child",), "Resident memory of each child process, by index."),
    Metric("jobq_lease_remaining_seconds", "gauge", (), "Seconds until the earliest lease expires; absent if none."),
    Metric("jobq_child_deaths_total", "counter", ("cause",), f"Dead children by cause: {', '.join(CAUSES)}."),
    Metric("jobq_completions_rejected_total", "counter", (), "Outcomes rejected because the lock was lost."),
    Metric("jobq_leases_lost_total", "counter", (), "Locks that a renewal found lost or cancelled."),
    Metric("jobq_server_errors_total", "counter", (), "Failed calls to the server."),
    Metric("jobq_server_full", "gauge", (), "1 while the server's memory is at maxmemory, so it rejects enqueues."),
    Metric("jobq_worker_info", "info", ("version", "queues"), "Always 1."),
)  # fmt: skip
#: Places of a queue's messages.
PLACES = ("ready", "delayed", "locked", "requeued", "deduped", "done")
#: Metrics of the exporter.
EXPORTER = table(
    Metric("jobq_queue_messages", "gauge", ("queue", "place"), f"Messages in each place: {', '.join(PLACES)}."),
    Metric("jobq_queue_dead", "gauge", ("queue",), "Dead messages."),
    Metric(
        "jobq_queue_unknown_messages", "gauge", ("queue", "job"),
        "Messages waiting because a worker doesn't know their job.",
    ),
    Metric("jobq_queue_paused", "gauge", ("queue",), "1 while the queue or any of its partitions is paused."),
    Metric("jobq_queue_workers", "gauge", ("queue",), "Live workers that serve the queue."),
    Metric("jobq_queue_slots", "gauge", ("queue",), "Concurrent jobs of the queue's workers, for all their queues."),
    Metric("jobq_queue_oldest_seconds", "gauge", ("queue",), "Waiting time of the next message, if known."),
    Metric("jobq_queue_head_age_seconds", "gauge", ("queue",), "Time for which the same message has been next."),
    Metric("jobq_queue_dequeued_total", "counter", ("queue",), "Dequeued messages, including released messages."),
    Metric("jobq_queue_events_total", "counter", ("queue",), "Events written."),
    Metric("jobq_queue_refused_total", "counter", ("queue",), "Messages rejected after an outage, and lost."),
    Metric("jobq_queue_flow_entries", "gauge", ("queue",), "Results not yet delivered to flows."),
    Metric("jobq_queue_flow_oldest_seconds", "gauge", ("queue",), "Age of the oldest undelivered result; 0 if none."),
    Metric("jobq_topic_lag_messages", "gauge", ("topic", "group"), "Messages not yet committed by the group."),
    Metric("jobq_topic_pending_messages", "gauge", ("topic", "group"), "Delivered but uncommitted messages."),
    Metric("jobq_cron_last_tick_timestamp_seconds", "gauge", ("cron",), "When the last tick of the schedule was due."),
    Metric("jobq_cron_late_seconds", "gauge", ("cron",), "Time since an overdue tick was due; 0 if none is overdue."),
    Metric("jobq_lake_lag_events", "gauge", ("queue",), "Events not yet in the lake."),
    Metric("jobq_lake_lag_seconds", "gauge", ("queue",), "Age of the lake's latest event; absent if none is missing."),
    Metric("jobq_lake_overrun_seconds", "gauge", ("queue",), "Time until unread events are dropped; absent if none."),
    Metric("jobq_queues_left_out", "gauge", (), "Listed queues without metrics: unused, or with invalid names."),
    Metric("jobq_topics_left_out", "gauge", (), "Listed topics without metrics: too many, or with invalid names."),
    Metric("jobq_up", "gauge", (), "1 if the server answered."),
    Metric("jobq_scrape_seconds", "gauge", (), "Duration of reading all values."),
    Metric("jobq_clock_skew_seconds", "gauge", (), "How far the server's clock is ahead of the exporter's."),
)  # fmt: skip
#: Metrics of the relay of an outbox.
OUTBOX = table(
    Metric("jobq_outbox_rows", "gauge", (), "Waiting rows, at most 100,000."),
    Metric("jobq_outbox_oldest_seconds", "gauge", (), "Age of the oldest waiting row; 0 if none waits."),
    Metric("jobq_outbox_refused_rows", "gauge", (), "Rows that can't become messages."),
    Metric("jobq_outbox_sent_total", "counter", (), "Rows enqueued by this relay."),
    Metric("jobq_outbox_refused_total", "counter", (), "Rows rejected by this relay."),
    Metric("jobq_outbox_errors_total", "counter", (), "Rounds that failed because the server or database was down."),
)  # fmt: skip
