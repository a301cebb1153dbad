"""A worker's counts equal its events and the planned ends of its jobs, even if children die (B1)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest
import redis as redis_py

from jobq.events import columns_of
from jobq.metrics.names import WORKER
from jobq.metrics.serving import parse_endpoint
from tests import tools

from .conftest import until
from .jobs_counted import answers, fails, fails_once, kills_once, passes, snoozes
from .test_health import monitor_of, served
from .test_server_trouble import own, own_queue

__all__ = ["own", "own_queue", "served"]
parsed = tools.library("prometheus_client.parser").text_string_to_metric_families
open_metrics = tools.library("prometheus_client.openmetrics.parser").text_string_to_metric_families

#: `make soak` has 10,000 of them.
COUNT = int(os.environ.get("JOBQ_COUNTED_JOBS", "400"))
OUTCOMES = {
    passes: {"done": 1}, answers: {"done": 1}, fails_once: {"retry": 1, "done": 1}, fails: {"dead": 1},
    kills_once: {"crashed": 1, "done": 1},
}  # fmt: skip


def attempts_of(text):
    """(job, outcome) -> how often, without zeros."""
    return {
        (sample.labels["job"], sample.labels["outcome"]): sample.value
        for family in parsed(text)
        for sample in family.samples
        if sample.name == "jobq_attempts_total" and sample.value
    }


def counted_in_events(redis):
    """Return these counts from the queue's event stream."""
    kinds = ("done", "retry", "dead", "crashed", "snoozed")
    events = [
        columns_of(value)
        for _, fields in redis.xrange("jobq:{low}:events")
        for value in fields.values()
    ]
    return Counter((one["job"], one["kind"]) for one in events if one["kind"] in kinds)


def test_attempts_equal_events_and_ledger_though_children_die(served, queue, redis, client):
    rng, expected = random.Random(15), Counter()
    made = rng.choices([passes, answers, fails_once, fails], k=COUNT - 3) + [kills_once] * 3
    rng.shuffle(made)
    for job in made:
        job.enqueue()
        expected.update({(job.name, outcome): n for outcome, n in OUTCOMES[job].items()})
    snoozes.enqueue(time.time() + 1)
    worker, ask = served("--processes", "4", module="tests.lifecycle.jobs_counted")
    before = {}

    def all_done():
        nonlocal before
        _, text = ask("/metrics")
        now = attempts_of(text) if text else before
        assert all(now.get(key, 0) >= count for key, count in before.items()), "a counter fell"
        before = now
        return {key: n for key, n in now.items() if key[0] != snoozes.name} == expected

    until(all_done)
    until(lambda: attempts_of(ask("/metrics")[1]).get((snoozes.name, "done")))
    until(lambda: attempts_of(ask("/metrics")[1]) == counted_in_events(redis))
    assert worker.stop() == 0


@pytest.mark.one_server
def test_page_is_read_by_prometheus_and_has_the_names_of_the_table(served, queue, client):
    for job in (passes, fails, kills_once):
        job.enqueue()
    worker, ask = served("--processes", "2", module="tests.lifecycle.jobs_counted")
    until(lambda: sum(attempts_of(ask("/metrics")[1]).values()) == 4)
    text = ask("/metrics")[1]
    families = {family.name: family for family in parsed(text)}
    names = {metric.name.removesuffix("_total") for metric in WORKER.values()}
    assert families.keys() - {"jobq_attempts"} <= names
    assert names - families.keys() <= set()
    deaths = {one.labels["cause"]: one.value for one in families["jobq_child_deaths"].samples}
    assert deaths == {"exit": 0, "signal": 1, "memory": 0, "hard_timeout": 0, "lease": 0}
    runs = families["jobq_run_seconds"].samples
    assert sum(one.value for one in runs if one.name.endswith("_count")) == 3
    [wait] = [one for one in families["jobq_wait_seconds"].samples if one.name.endswith("_count")]
    assert (wait.labels, wait.value) == ({"queue": "low"}, 2)  # the first attempt of one crashed
    assert worker.stop() == 0


@pytest.mark.one_server
def test_metrics_without_jobs_and_in_open_metrics(served, queue, client, short_folder):
    for job in (passes, answers, fails):
        job.enqueue()
    worker, ask = served(
        "--processes", "1", "--metrics-labels", "queue", module="tests.lifecycle.jobs_counted"
    )
    until(lambda: 'outcome="dead",queue="low"} 1.0' in ask("/metrics")[1])
    text = ask("/metrics")[1]
    assert "job=" not in text and "jobq_run_seconds_count 3.0" in text
    endpoint = parse_endpoint(f"unix:{short_folder}/health-{os.getpid()}.sock")
    asked = open_metrics_of(endpoint)
    assert "jobq_attempts" in {family.name for family in open_metrics(asked)}
    assert worker.stop() == 0


def open_metrics_of(endpoint):
    """The page for a scraper that prefers OpenMetrics."""
    import http.client
    import socket

    line = http.client.HTTPConnection("localhost")
    line.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.sock.connect(endpoint.path)
    line.request(
        "GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    reply = line.getresponse()
    assert reply.getheader("Content-Type", "").startswith("application/openmetrics-text")
    text = reply.read().decode()
    line.close()
    return text


@pytest.mark.one_server
def test_scrape_asks_the_server_nothing(served, own, own_queue):
    worker, ask = served("--processes", "2", url=own.url, module="tests.lifecycle.jobs_counted")
    until(lambda: ask("/readyz")[0] == 200)
    children = [one for one in worker.children() if one != monitor_of(worker).pid]
    server = redis_py.Redis(unix_socket_path=own.socket)
    for pid in (worker.pid, *children):
        os.kill(pid, signal.SIGSTOP)
    try:
        # A call of the monitor would need a connection of its own: the others' are the stopped processes'.
        before = server.info("stats")["total_connections_received"]
        for _ in range(5):
            assert "jobq_slots 2.0" in ask("/metrics")[1]
        assert server.info("stats")["total_connections_received"] == before
    finally:
        for pid in (worker.pid, *children):
            os.kill(pid, signal.SIGCONT)
        server.close()
    assert worker.stop() == 0
