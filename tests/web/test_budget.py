"""Pages of a large installation stay within their budgets: commands, bytes, and how often the server is asked.

JOBQ_WEB=soak: 1,000,000 messages, and time on the processor too.
"""

from __future__ import annotations

import gzip
import os
import time
from types import SimpleNamespace

from bench.dashboard import PAGES, fill
from jobq.observe.situation import MAX_QUEUES
from jobq.web.live import sampler_of
from jobq.web.sampler import Sampling

SOAK = os.environ.get("JOBQ_WEB") == "soak"
QUEUES, MESSAGES, WORKERS = 500, 1_000_000 if SOAK else 10_000, 1_000
#: Of a page, compressed; processor time of a page and of a refresh, by path.
MAX_BYTES, PAGE_MS, REFRESH_MS = 60 * 1024, {"/": 100, "/queues": 150, "/queues/q7": 100}, 30


def counted(client) -> dict[str, int]:
    """Return the number of calls per command, including calls by scripts."""
    lines = client.command("INFO", "commandstats").decode().splitlines()
    found = {
        line.split(":")[0].removeprefix("cmdstat_"): line for line in lines if "calls=" in line
    }
    return {name: int(line.split("calls=")[1].split(",")[0]) for name, line in found.items()}


def test_pages_of_a_large_installation_are_small_and_ask_the_server_nothing(
    client, visit, monkeypatch
):
    # Which parts of jobq the installation uses is asked once, however long the pages take on a busy machine.
    monkeypatch.setattr("jobq.web.site.time", SimpleNamespace(monotonic=lambda: 1.0))
    fill(client, QUEUES, MESSAGES, WORKERS, events=4)
    page = visit()
    sampler = sampler_of(page.app.state.site)
    sampler.look(120)
    sampler.close(120)  # only commands of pages are counted after this
    for path in PAGES:
        page.get(path)
        reply, calls = asked(client, page, path)
        assert reply.status_code == 200
        assert len(gzip.compress(reply.content)) <= MAX_BYTES, path
        assert not {"keys", "monitor", "scan", "hgetall"} & calls.keys(), path
        assert sum(calls.values()) <= 10, (path, calls)
        if SOAK:
            assert took_ms(page, path) <= PAGE_MS[path]
            assert took_ms(page, path, {"X-Jobq-Live": "1"}) <= REFRESH_MS, path
    reply = page.get("/queues")
    assert reply.text.count("<tr>") == QUEUES + 1
    assert reply.headers["content-encoding"] == "gzip"
    assert f"{QUEUES} queues" in page.get("/").text


def asked(client, page, path: str):
    """The reply, and the calls of the request with the fewest of three: now and then one asks for more."""
    found = []
    for _ in range(3):
        client.command("CONFIG", "RESETSTAT")
        reply = page.get(path)
        found.append(counted(client))
    return reply, min(found, key=lambda calls: sum(calls.values()))


def took_ms(page, path: str, headers: dict[str, str] | None = None) -> float:
    """The least processor time of ten requests."""
    found = []
    for _ in range(10):
        began = time.process_time()
        page.get(path, headers=headers or {})
        found.append((time.process_time() - began) * 1000)
    return min(found)


def test_reading_calls_one_script_per_queue_and_little_else(client):
    fill(client, QUEUES, QUEUES * 4, WORKERS, events=4)
    sampling = Sampling(client)
    sampling.catch_up()
    assert len(sampling.snapshot.workers) == WORKERS and len(sampling.snapshot.queues) == QUEUES
    client.command("CONFIG", "RESETSTAT")
    sampling.take_snapshot()
    calls = counted(client)
    scripts = sum(number for name, number in calls.items() if name.startswith(("eval", "fcall")))
    assert scripts == QUEUES
    assert calls["hgetall"] == 1 and calls["smembers"] == 1
    assert not {"keys", "monitor", "scan", "xrange", "xread"} & calls.keys()
    # The newest events of the busiest queues, to say what is wrong there.
    assert calls["xrevrange"] <= MAX_QUEUES
