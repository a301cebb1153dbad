"""The translation of Celery's options, and options that are rejected."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest

from jobq.celery import (
    AsyncResult,
    Celery,
    Task,
    chain,
    chord,
    current_task,
    group,
    shared,
    shared_task,
    signature,
)
from jobq.celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry, TimeoutError
from jobq.celery.result import of_class
from jobq.celery.schedules import crontab
from jobq.celery.signals import task_postrun, task_retry
from jobq.celery.tasks import backoff_s
from jobq.errors import CodecError, ConfigError, JobFailedError
from jobq.jobs.registry import default_registry
from jobq.testing import Kit
from jobq.testing.attempts import Attempts
from tests import tools

pytestmark = pytest.mark.one_server


@pytest.fixture
def jobq(server):
    with Kit(server.url) as kit:
        yield kit


@pytest.fixture
def app():
    """An app whose tasks are forgotten after the test."""
    known = [
        shared.tasks,
        *(value for value in vars(default_registry).values() if isinstance(value, dict)),
    ]
    before = [dict(names) for names in known]
    made = Celery("test", backend="redis")
    yield made
    shared.apps.remove(made)
    for names, earlier in zip(known, before, strict=True):
        names.clear()
        names.update(earlier)


@pytest.fixture
def eager(app):
    app.conf.task_always_eager = True
    return app


@pytest.mark.parametrize("jitter", [False, True])
@pytest.mark.parametrize(("factor", "maximum"), [(1, 600), (3, 600), (2, 7), (5, 0)])
def test_backoffs_are_those_of_celery(factor, maximum, jitter):
    theirs = tools.library("celery.utils.time").get_exponential_backoff_interval
    for retries in range(80):
        random.seed(retries)
        expected = theirs(factor, retries, maximum, full_jitter=jitter)
        random.seed(retries)
        assert backoff_s(factor, retries, maximum, full_jitter=jitter) == expected


def test_options_of_a_call_are_those_of_the_message(app, jobq):
    @app.task(expires=60)
    def add(x, y=0):
        return x + y

    soon = datetime.now(UTC) + timedelta(hours=1)
    add.apply_async((1,), {"y": 2}, countdown=30, queue="low", task_id="mine")
    jobq.assert_enqueued(add.job, args=(1,), kwargs={"y": 2}, delay=30, queue="low", mid="mine")
    add.apply_async((2,), eta=soon.replace(tzinfo=None))
    jobq.assert_enqueued(add.job, args=(2,), at=soon, queue="celery")
    jobq.clock.move(3700)
    assert jobq.drain("low").expired == 1
    add.apply_async((3,), expires=timedelta(0) + datetime.now(UTC) + timedelta(hours=2))
    jobq.clock.move(10_000)
    assert jobq.drain("celery").expired >= 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"priority": 3}, "priority=3 of .* can't be used; use a queue for each priority"),
        ({"serializer": "pickle"}, "arguments are JSON"),
        ({"routing_key": "a"}, "name the queue"),
        ({"no_such": 1}, "has no option no_such=1"),
    ],
)
def test_option_without_equivalent_is_refused_in_words(app, options, why):
    @app.task
    def add(x):
        return x

    with pytest.raises(ConfigError, match=why):
        add.apply_async((1,), **options)
    app.conf.task_always_eager = True
    with pytest.raises(ConfigError, match=why):
        add.apply_async((1,), **options)


def test_declaration_that_cannot_hold_is_refused(app):
    with pytest.raises(ConfigError, match="use a queue for each priority"):
        app.task(priority=3)(lambda: None)
    with pytest.raises(ConfigError, match="arguments are JSON"):
        app.task(serializer="pickle")(lambda: None)

    async def fetch():
        pass

    with pytest.raises(ConfigError, match=r"decorate it with @jobq\.job"):
        app.task(fetch)
    with pytest.raises(ConfigError, match="cron runs a task if either matches"):
        crontab(day_of_month=1, day_of_week="mon")
    with pytest.raises(ImportError, match="worker_ready"):
        exec("from jobq.celery.signals import worker_ready")
    with pytest.raises(AttributeError, match="use a middleware with an enqueue method"):
        _ = __import__("jobq.celery.signals").celery.signals.before_task_publish


def test_queue_is_the_tasks_own_then_that_of_a_route_then_the_default(app):
    app.conf.task_routes = (
        {"exact": "one"},
        [(re.compile("reg.*"), {"queue": "two"}), ("glob.*", {"queue": "three"})],
        lambda name, args, kwargs, options, task=None: {"queue": "four"} if name == "by" else None,
    )
    queues = {
        name: app.task(name=name, **options)(lambda: None).job.queue
        for name, options in (
            ("exact", {}), ("regular", {}), ("glob.x", {}), ("by", {}), ("other", {}), ("glob.y", {"queue": "own"}),
        )
    }  # fmt: skip
    assert list(queues.values()) == ["one", "two", "three", "four", "celery", "own"]
    app.conf.task_default_queue = "tasks"
    assert shared.tasks["other"].job.queue == "tasks"


def test_results_are_kept_with_a_backend_unless_ignored(app):
    @app.task
    def kept():
        pass

    ignored = app.task(name="ignored", ignore_result=True)(lambda: None)
    assert (kept.job.settings.result_ttl, ignored.job.settings.result_ttl) == (86_400, None)
    app.conf.update(result_expires=timedelta(minutes=5))
    assert kept.job.settings.result_ttl == 300
    app.conf.result_backend = None
    assert kept.job.settings.result_ttl is None


def test_eager_task_retries_and_calls_back_here(eager):
    said = []

    class Base(Task):
        def on_retry(self, exc, task_id, args, kwargs, einfo):
            said.append(("retry", type(exc).__name__, self.request.retries))

        def after_return(self, status, retval, task_id, args, kwargs, einfo):
            said.append((status, current_task.name))

    @eager.task(bind=True, base=Base, name="flaky", max_retries=2)
    def flaky(self, value):
        assert self.request.is_eager
        if self.request.retries < 2:
            self.retry(exc=KeyError(value), countdown=3600)
        return value

    @eager.task(name="note")
    def note(value):
        said.append(value)

    done = flaky.apply_async(("x",), link=note.s())
    assert (done.get(), done.state, done.successful()) == ("x", "SUCCESS", True)
    assert said == [
        ("retry", "KeyError", 0), ("RETRY", "flaky"), ("retry", "KeyError", 1), ("RETRY", "flaky"), "x",
        ("SUCCESS", "flaky"),
    ]  # fmt: skip
    assert not current_task


def test_eager_task_that_fails_raises_its_own_exception(eager):
    @eager.task(bind=True, name="fails", max_retries=1)
    def fails(self, given):
        if given:
            self.retry(exc=KeyError("given"), countdown=0)
        self.retry(countdown=0)

    with pytest.raises(KeyError, match="given"):
        fails.delay(True).get()
    result = fails.delay(False)
    assert (result.state, type(result.result)) == ("FAILURE", MaxRetriesExceededError)
    eager.conf.task_eager_propagates = True
    with pytest.raises(MaxRetriesExceededError, match="Can't retry fails"):
        fails.delay(False)
    with pytest.raises(Retry):
        fails(False)


def test_eager_canvas_runs_here(eager):
    add = eager.task(name="add")(lambda x, y: x + y)
    total = eager.task(name="total")(sum)
    assert chain(add.s(1, 2), add.s(10)).apply_async().get() == 13
    assert (add.s(1, 2) | add.s(10) | add.si(0, 1)).delay().get() == 1
    assert group(add.s(n, n) for n in range(3))().get() == [0, 2, 4]
    assert chord([add.s(1, 1), add.s(2, 2)])(total.s()).get() == 6
    assert add.starmap([(1, 2), (3, 4)]).apply().get() == [3, 7]
    assert total.map([[1, 2], [3]]).apply().get() == [3, 3]


def test_canvas_runs_as_flows(app, jobq):
    add = app.task(name="add")(lambda x, y: x + y)
    total = app.task(name="total")(sum)
    note = app.task(name="note")(lambda task_id: None)
    divide = app.task(name="divide")(lambda x, y: x / y)
    results = [
        chain(add.s(1, 2), group(add.s(1), add.s(2)), total.s()).apply_async(),
        group(add.s(n, n) for n in range(3)).apply_async(),
        add.starmap([(1, 2), (3, 4)]).apply_async(),
        chain(add.si(1, 1), total.map([[1, 2], [3]])).apply_async(),
        chord((add.s(n, 1) for n in range(3)), total.s())(),
        add.s(1).apply_async((5,)),
    ]
    failing = chain(divide.s(1, 0), add.s(1)).on_error(note.s()).apply_async()
    assert failing.state == "PENDING"
    jobq.drain(raises=False)
    assert [result.get(timeout=1) for result in results] == [9, [0, 2, 4], [3, 7], [3, 3], 6, 6]
    assert results[1].successful() and results[1].completed_count() == 3
    again = AsyncResult(results[0].id)
    assert (again.get(timeout=1), again.state) == (9, "SUCCESS")
    assert (failing.state, failing.failed()) == ("FAILURE", True)
    with pytest.raises(JobFailedError):
        failing.get(timeout=1)
    with pytest.raises(ConfigError, match=r"set them on its tasks"):
        chain(add.s(1, 2)).apply_async(countdown=3)


def test_signature_survives_json(app, jobq):
    add = app.task(name="add")(lambda x, y: x + y)
    made = chain(add.s(1, 2).set(queue="low"), add.si(3, 4)) | add.s(1)
    same = signature(json.loads(json.dumps(made)))
    assert (type(same), same, len(same.tasks)) == (chain, made, 3)
    result = same.delay()
    jobq.drain()
    assert result.get(timeout=1) == 8


def test_state_follows_the_message(app, jobq):
    @app.task(bind=True, name="comes-later", max_retries=1)
    def later(self):
        if not self.request.retries:
            raise self.retry(countdown=60)
        raise ValueError("over")

    unknown = AsyncResult("no-such-id")
    assert (unknown.state, unknown.ready()) == ("PENDING", False)
    with pytest.raises(
        ConfigError, match="no queue has a task or a result with the id 'no-such-id'"
    ):
        unknown.get(timeout=0)
    result = later.delay()
    assert result.state == "PENDING"
    with pytest.raises(TimeoutError):
        result.get(timeout=0.01)
    jobq.drain(retries=False, raises=False)
    assert result.state == "RETRY"
    jobq.drain(raises=False)
    assert (result.state, "ValueError: over" in result.traceback) == ("FAILURE", True)
    assert "over" in str(result.get(propagate=False))
    other = later.delay()
    other.revoke()
    assert (other.state, AsyncResult(other.id).state, other.ready()) == ("REVOKED", "REVOKED", True)


def test_task_says_how_it_ends(app, jobq):
    retried = []
    task_retry.connect(lambda request, reason, **_: retried.append((request.id, str(reason))))

    @app.task(bind=True, name="ends", max_retries=None)
    def ends(self, how):
        if how == "ignore":
            raise Ignore
        if how == "reject":
            raise Reject("no")
        if how == "unthrown" and not self.request.retries:
            return self.retry(countdown=0, throw=False)
        if how == "moved":
            self.retry(args=("other",), queue="elsewhere")
        return self.request.delivery_info["routing_key"]

    try:
        for how, state, value in (
            ("ignore", "SUCCESS", None), ("unthrown", "SUCCESS", "celery"), ("plain", "SUCCESS", "celery"),
        ):  # fmt: skip
            result = ends.apply_async((how,), task_id=how)
            jobq.drain()
            assert (result.state, result.get(timeout=1)) == (state, value)
        for how, why in (("reject", "rejected"), ("moved", r"retry\(queue=.*send a new call")):
            result = ends.delay(how)
            jobq.drain(raises=False)
            with pytest.raises(JobFailedError, match=why):
                result.get(timeout=1)
        assert [mid for mid, _ in retried] == ["unthrown"]
    finally:
        task_retry.receivers.clear()


@pytest.mark.parametrize("always_eager", [False, True])
def test_retry_runs_with_other_arguments_when_it_gives_them(app, jobq, always_eager):
    app.conf.task_always_eager = always_eager

    @app.task(bind=True, name="halves", max_retries=5)
    def halves(self, value, step=1):
        if value > 1:
            self.retry(args=(value // 2,), kwargs={"step": step + 1}, countdown=0)
        return [value, step, self.request.retries]

    result = halves.delay(9)
    if not always_eager:
        jobq.drain()
    assert result.get(timeout=1) == [1, 4, 3]


def test_chunks_run_several_calls_in_one_message(app, jobq):
    add = app.task(name="add", queue="sums")(lambda x, y: x + y)
    result = add.chunks(zip(range(5), range(5), strict=True), 2)()
    assert jobq.drain("sums").done == 3
    assert result.get(timeout=1) == [[0, 2], [4, 6], [8]]
    app.send_task("celery.starmap", ("os.getcwd", [[]]), task_id="forged")
    jobq.drain(raises=False)
    with pytest.raises(JobFailedError, match=r"declares the task .os\.getcwd."):
        AsyncResult("forged").get(timeout=1)


class OutOfStock(Exception):
    def __init__(self, item, left):
        super().__init__(item, left)
        self.item = item


class Careless(Exception):
    made: ClassVar = []

    def __new__(cls, *args):
        cls.made.append(args)
        return super().__new__(cls, *args)


def test_get_raises_the_tasks_own_exception_when_its_class_is_loaded(app, jobq):
    @app.task(name="sells")
    def sells(item):
        raise {"ink": OutOfStock("ink", 3), "pen": KeyError("pen"), "cap": OSError(2, "no")}[item]

    results = {item: sells.delay(item) for item in ("ink", "pen", "cap")}
    step = chain(sells.si("ink"), sells.si("pen")).apply_async()
    jobq.drain(raises=False)
    for item, kind in (("ink", OutOfStock), ("pen", KeyError), ("cap", OSError)):
        with pytest.raises(kind, match=item if item != "cap" else "no") as caught:
            results[item].get(timeout=1)
        assert isinstance(caught.value, JobFailedError)
        assert isinstance(results[item].info, kind)
    with pytest.raises(OutOfStock):
        step.get(timeout=1)


@pytest.mark.parametrize(
    "name",
    ["this.Zen", "antigravity.X", "os.system", "str", "SystemExit", "no_such",
        f"{__name__}.Careless", "a..b", "ExceptionGroup",
    ]
)  # fmt: skip
def test_error_keeps_its_class_when_its_text_names_no_loaded_exception(name):
    error = JobFailedError(f"sells 01ab is dead: {name}: text")
    before = set(sys.modules)
    assert of_class(error) is error
    assert (set(sys.modules) - before, Careless.made) == (set(), [])


def test_method_without_equivalent_is_refused_in_words(app):
    task = app.task(name="plain")(lambda: None)
    with pytest.raises(
        AttributeError, match=r"plain has no replace; add steps to the running flow"
    ):
        task.replace(task.s())
    with pytest.raises(AttributeError, match=r"no start_strategy; docs/interop/celery\.md"):
        _ = task.start_strategy


def test_callback_is_sent_once_when_the_attempt_runs_twice(app, jobq):
    add = app.task(name="add")(lambda x, y: x + y)
    note = app.task(name="note")(lambda value: None)
    add.apply_async((1, 2), link=[note.s(), chain(note.si(1), note.si(2))])
    [call] = jobq.all_enqueued()
    for attempt in (1, 2):
        facts = {"attempt": attempt, "mid": call.mid, "headers": call.headers}
        Attempts(default_registry, facts, records=False).run(add.job, 1, 2)
    jobq.drain(raises=False)
    again = Attempts(
        default_registry, {"attempt": 3, "mid": call.mid, "headers": call.headers}, records=False
    )
    assert again.run(add.job, 1, 2).outcome == "done"
    assert [one.job for one in jobq.all_enqueued()] == []


def test_typed_arguments_are_off_unless_asked_for(app, jobq):
    moment = datetime(2026, 1, 2, tzinfo=UTC)

    @app.task(name="plain")
    def plain(when: datetime):
        return when

    @app.task(name="typed", typed=True)
    def typed(when: datetime) -> int:
        return when.year

    with pytest.raises(CodecError):
        plain.delay(moment)
    result = typed.delay(moment)
    jobq.drain()
    assert result.get(timeout=1) == 2026


def test_beat_entries_are_schedules(app, jobq):
    @app.on_after_configure.connect
    def periodic(sender, **_):
        sender.add_periodic_task(90.0, tidy.s(3), name="tidy up")

    @app.task(name="tidy")
    def tidy(days):
        pass

    app.conf.beat_schedule = {
        "nightly": {"task": "tidy", "schedule": crontab(hour="*/6", minute=5), "args": (7,)},
        "unknown": {"task": "no.such", "schedule": 60},
    }
    with pytest.raises(ConfigError, match=r"beat_schedule\['unknown'\] names a task that no"):
        app.finalize()
    app.conf.beat_schedule = {
        name: entry for name, entry in app.conf.beat_schedule.items() if name != "unknown"
    }
    app.finalize()
    jobq.tick()
    jobq.clock.move(100)
    jobq.tick()
    jobq.assert_enqueued(tidy.job, args=(3,), count=1)
    jobq.clock.move(6 * 3600)
    jobq.tick()
    jobq.assert_enqueued(tidy.job, args=(7,))
    with pytest.raises(ConfigError, match="set them on the task tidy"):
        app.conf.beat_schedule = {
            "bad": {"task": "tidy", "schedule": 60, "options": {"expires": 5}}
        }
    app.conf.beat_schedule = {}


def test_settings_come_from_objects_with_a_namespace(app, monkeypatch):
    class Settings:
        CELERY_TASK_DEFAULT_QUEUE = "django"
        CELERY_RESULT_BACKEND = "django-db"
        DEBUG = True

        @property
        def SECRET_KEY(self):
            raise ValueError("settings that aren't Celery's are left alone")

    app.config_from_object(Settings(), namespace="CELERY")
    assert (app.conf.task_default_queue, app.conf["result_backend"]) == ("django", "django-db")
    assert "debug" not in app.conf
    app.config_from_object("tests.celery.settings_of_a_project")
    assert app.conf.task_default_queue == "from-module"
    with pytest.raises(AttributeError, match="no setting 'nope'"):
        _ = app.conf.nope


def test_tasks_of_classes_and_of_other_programs(app, jobq):
    class Greet(app.Task):
        name = "greet"

        def run(self, who):
            return f"hi {who}"

    greet = app.register_task(Greet)
    assert greet("a") == "hi a"
    result, foreign = greet.delay("b"), app.send_task("elsewhere.task", (1,), queue="other")
    jobq.drain("celery")
    assert result.get(timeout=1) == "hi b"
    [call] = jobq.all_enqueued("other")
    assert (call.job, call.args, call.mid) == ("elsewhere.task", [1], foreign.id)
    app.control.revoke(foreign.id)
    assert jobq.all_enqueued() == []


def test_shared_task_has_the_settings_of_the_newest_app(app):
    @shared_task(name="shared")
    def one():
        pass

    app.conf.task_default_queue = "here"
    assert one.job.queue == "here"
    assert one.app is app


def test_receivers_hear_of_the_end_and_may_fail(app, jobq, caplog):
    heard = []

    @task_postrun.connect
    def after(sender, state, retval, **_):
        heard.append((sender.name, state, retval))
        raise ZeroDivisionError

    try:
        add = app.task(name="add")(lambda x, y: x + y)
        add.delay(1, 2)
        assert jobq.drain().done == 1
        assert heard == [("add", "SUCCESS", 3)]
        assert "a receiver of signal task_postrun failed" in caplog.text
        assert task_postrun.disconnect(after)
    finally:
        task_postrun.receivers.clear()


def test_on_failure_hears_of_a_crash(app, jobq, tmp_path):
    class Base(Task):
        def on_failure(self, exc, task_id, args, kwargs, einfo):
            (tmp_path / "failed").write_text(f"{type(exc).__name__} {args}")

    @app.task(base=Base, name="crashes")
    def crashes(value):
        os.kill(os.getpid(), signal.SIGKILL)

    crashes.delay(7)
    with jobq.worker(queues=["celery"], crash_limit=1) as worker:
        worker.wait(60)
    assert (tmp_path / "failed").read_text() == "WorkerLostError [7]"


def test_rate_limit_is_a_limit_of_all_workers(app):
    slow = app.task(name="slow", rate_limit="10/m")(lambda: None)
    assert [str(limit.rate) for limit in slow.job.settings.limits] == ["10/m"]
