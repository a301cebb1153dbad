"""One attempt without a server: `run_job` and `running`."""

from __future__ import annotations

import asyncio

import pytest

from jobq.errors import CodecError, ConfigError, Dead, JobTimeout, Snooze
from jobq.jobs.context import current
from jobq.jobs.middleware import Middlewares
from jobq.jobs.registry import Registry, job
from jobq.limits.rate_limit import RateLimit
from jobq.testing import run_job, running


@pytest.fixture
def follow(registry):
    @job(name="follow", queue="next", registry=registry, key="what", ordered=True)
    def follow(what):
        return what

    return follow


def test_value_logs_progress_and_what_was_enqueued(registry, follow):
    @job(name="first", registry=registry, headers={"team": "a"})
    def first(number, *, text):
        context = current()
        context.logger.warning("number %d", number)
        context.progress(1, note="half")
        follow.options(delay="1h").enqueue(number)
        follow.enqueue_many([(1,), (2,)])
        asyncio.run(follow.aenqueue(4))
        return [number, text, context.headers["team"], context.attempt, context.lease_valid()]

    ran = run_job(first, 3, text="x")
    assert (ran.outcome, ran.value, ran.error) == ("done", [3, "x", "a", 1, True], None)
    assert "number 3" in [record.getMessage() for record in ran.logs]
    assert ran.progress == ("1 half",)
    assert [(call.job, call.queue, call.args, round(call.delay)) for call in ran.enqueued] == [
        ("follow", "next", [3], 3600), ("follow", "next", [1], 0), ("follow", "next", [2], 0),
        ("follow", "next", [4], 0),
    ]  # fmt: skip


def test_attempt_is_what_the_test_says(registry):
    @job(registry=registry, retries=5, retry=lambda failures, error: 10 * failures)
    def fetch(url):
        context = current()
        raise ConnectionError(
            context.attempt, context.failures, context.mid, context.headers, context.generation, context.fence,
            context.lease_left // 100, context.checkpoint_value, url,
        )  # fmt: skip

    ran = running(
        attempt=3, crashes=1, mid="m", headers={"a": "b"}, generation="g", fence=9, lease_left=4990,
        checkpoint="[1]", waited=60,
    ).run(fetch, "http://down")  # fmt: skip
    assert (ran.outcome, ran.retry_in, ran.reason) == ("retry", 20, "")
    assert ran.error.args == (3, 2, "m", {"a": "b"}, "g", 9, 49, [1], "http://down")
    assert running(attempt=6).run(fetch, "x").outcome == "dead"
    assert (
        running(attempt=3, waited="2h").run(fetch.options(retry_within="1h"), "x").outcome == "dead"
    )
    assert running(waited="2h").run(fetch.options(expires_in="1h"), "x").outcome == "expired"
    with pytest.raises(ConfigError, match="an attempt has no 'tries'"):
        running(tries=3)


def test_codec_is_real(registry):
    @job(registry=registry)
    def takes(value):
        return type(value).__name__

    assert run_job(takes, (1, 2)).value == "list"
    with pytest.raises(CodecError):
        run_job(takes, object())
    with pytest.raises(TypeError, match="missing a required argument"):
        run_job(takes)


def test_async_jobs_middleware_timeouts_and_outcomes():
    seen = []

    class Seen:
        def run(self, context, following):
            seen.append(context.job)
            return following()

        async def arun(self, context, following):
            seen.append(context.job)
            return await following()

    registry = Registry(Middlewares())
    registry.middleware.add(Seen())

    @job(name="sleeps", registry=registry, timeout=0.3)
    async def sleeps():
        await asyncio.sleep(600)

    @job(name="spins", registry=registry, timeout=0.3, limits=[RateLimit("one", "1/h")])
    def spins():
        while True:
            pass

    @job(name="chooses", registry=registry)
    def chooses(outcome):
        raise Snooze(7) if outcome == "snooze" else Dead("over")

    for slow in (sleeps, spins):
        assert isinstance(run_job(slow).error, JobTimeout)
    assert isinstance(asyncio.run(running().arun(sleeps)).error, JobTimeout)
    assert run_job(chooses, "snooze")[0::3] == ("snooze", 7, ())
    assert run_job(chooses, "dead").reason == "over"
    assert seen == ["sleeps", "spins", "sleeps", "chooses", "chooses"]


def test_what_needs_a_server_says_so(registry, follow):
    @job(registry=registry)
    def looks():
        follow.receipt("m").status()

    ran = run_job(looks)
    assert isinstance(ran.error, ConfigError)
    assert "status needs a server" in str(ran.error)
