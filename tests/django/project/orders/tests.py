"""What Django's own tests of task backends ask, and what this backend adds; `manage.py test` runs them.

A server is there; the tests run what was enqueued themselves, as a worker's child does.
"""

import asyncio
import tempfile
from datetime import datetime, timedelta
from unittest import mock

from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from django.utils.safestring import mark_safe

from jobq.client.connection import connect, default_client, set_default_client
from jobq.django import JobqBackend, enqueue_on_commit, job_of, task_options
from jobq.django.compat import (
    InvalidBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
    task_backends,
)
from jobq.django.records import Called, Records, Sent, Tried
from jobq.django.results import status_of
from jobq.errors import CodecError, ConfigError
from jobq.jobs.context import Call
from jobq.jobs.executor import Executor
from jobq.jobs.registry import default_registry
from jobq.jobs.signing import seal_of
from jobq.jobs.states import STATE_OF
from jobq.queue.partitioning import partition
from jobq.queue.queue import Queue
from jobq.queue.types import Status
from jobq.testing import kit_for
from orders import tasks
from orders.compat import task
from orders.models import Order

DUMMY = f"{task.__module__.rpartition('.')[0]}.backends.dummy.DummyBackend"
QUEUES = ("default", "mails", "high", "low")


def options(**changes):
    """Settings with these options of the backend."""
    backend = {"BACKEND": "jobq.django.JobqBackend", "QUEUES": ["default", "mails"]}
    return override_settings(TASKS={"default": {**backend, "OPTIONS": changes}})


def run_all(most=1000):
    """Run up to `most` messages that are due; return which messages ran."""
    executor, ran = Executor(default_registry, worker="tests"), []
    for name in QUEUES:
        queue = Queue(name)
        while len(ran) < most and (messages := queue.dequeue(1).messages):
            call = executor.resolve(name, messages[0])
            if isinstance(call, Call):
                call = asyncio.run(executor.arun(call)) if call.job.is_async else executor.run(call)
            queue.finish([call])
            ran.append(f"{name}/{messages[0].mid}")
    return ran


class EmptyServer:
    """Each test begins with an empty server."""

    def setUp(self):
        default_client().command("FLUSHDB", routed_by="{default}")


class EnqueueTests(EmptyServer, SimpleTestCase):
    def test_results_are_ready_and_can_be_fetched(self):
        for one in (tasks.nothing, tasks.nothing_async):
            result = one.enqueue(1, two=3)
            self.assertEqual(
                (result.status, result.args, result.kwargs, result.attempts, result.task),
                (TaskResultStatus.READY, [1], {"two": 3}, 0, one),
            )
            self.assertIsNotNone(result.enqueued_at)
            self.assertEqual(one.get_result(result.id), result)
            result.refresh()
            self.assertEqual(one.get_result(result.id), result)

    async def test_async_results_are_ready_and_can_be_fetched(self):
        result = await tasks.product.aenqueue(2)
        self.assertEqual(await tasks.product.aget_result(result.id), result)
        await result.arefresh()
        self.assertEqual(result.status, TaskResultStatus.READY)

    def test_result_is_found_when_the_task_ends_while_it_is_read(self):
        result = tasks.product.enqueue(4)
        read = Records.read_record

        def read_and_run(records, mid):
            record = read(records, mid)
            run_all()
            return record

        with mock.patch.object(Records, "read_record", read_and_run):
            self.assertEqual(
                tasks.product.get_result(result.id).status, TaskResultStatus.SUCCESSFUL
            )

    def test_result_of_another_task_or_of_none_is_refused(self):
        result = tasks.nothing.enqueue()
        with self.assertRaisesMessage(Exception, "Task does not match"):
            tasks.product.get_result(result.id)
        for name in ("123", "default/123", "/", "no such/1", "de{fault/1", "default/\n", "x" * 500):
            with self.subTest(name), self.assertRaises(TaskResultDoesNotExist):
                tasks.nothing.get_result(name)

    def test_arguments_that_json_cannot_carry_are_refused(self):
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            tasks.nothing.enqueue(datetime.now())
        with self.assertRaisesMessage(CodecError, "use str keys"):
            tasks.nothing.enqueue({1: 2})
        with self.assertRaisesMessage(TypeError, "product()"):
            tasks.product.enqueue(1, 2, 3)

    def test_texts_of_django_arrive_as_texts(self):
        result = tasks.product.enqueue(mark_safe("ab"), other=TaskResultStatus.READY)
        self.assertEqual(result.refresh(), None)
        self.assertEqual((result.args, result.kwargs), (["ab"], {"other": "READY"}))

    def test_task_is_validated_when_made_and_when_enqueued(self):
        with self.assertRaisesMessage(InvalidTask, "Queue 'other' is not valid for backend."):
            tasks.nothing.using(queue_name="other")
        with self.assertRaisesMessage(InvalidTask, "does not support setting priority"):
            tasks.nothing.using(priority=1)
        with self.assertRaisesMessage(InvalidTask, "must be an aware datetime"):
            tasks.nothing.using(run_after=datetime.now())
        with self.assertRaisesMessage(InvalidTask, "must be defined at a module level"):
            task(lambda: None)
        with self.assertRaisesMessage(InvalidTask, "first argument of 'context'"):
            task(takes_context=True)(tasks.product.func)
        mails = tasks.nothing.using(queue_name="mails")
        with override_settings(TASKS={"default": {"BACKEND": "jobq.django.JobqBackend"}}):
            with self.assertRaisesMessage(InvalidTask, "Queue 'mails' is not valid"):
                mails.enqueue()

    def test_task_runs_on_its_queue_and_not_before_its_time(self):
        later = timezone.now() + timedelta(hours=1)
        result = tasks.nothing.using(queue_name="mails", run_after=later).enqueue()
        self.assertTrue(result.id.startswith("mails/"))
        status = Queue("mails").status(result.id.partition("/")[2])
        self.assertEqual(status.word, "queued-with-backoff")
        self.assertAlmostEqual(status.not_before / 1000, later.timestamp(), delta=1)
        found = task_backends["default"].get_result(result.id)
        self.assertEqual((found.task.queue_name, found.task.run_after), ("mails", later))
        self.assertEqual(found, result)

    def test_priority_chooses_the_queue(self):
        with options(priority_queues={50: "high", -50: "low"}):
            found = {
                priority: tasks.nothing.using(priority=priority).enqueue()
                for priority in (100, 50, 49, 0, -49, -50, -100)
            }
            queues = {priority: one.id.partition("/")[0] for priority, one in found.items()}
            fetched = tasks.nothing.get_result(found[100].id)
        self.assertEqual(
            queues,
            {100: "high", 50: "high", 49: "default", 0: "default", -49: "default", -50: "low", -100: "low"},
        )  # fmt: skip
        self.assertEqual((fetched.task.priority, fetched.task.queue_name), (100, "default"))

    def test_unique_task_has_one_message_and_one_signal(self):
        enqueued = mock.Mock()
        signals.task_enqueued.connect(enqueued)
        self.addCleanup(signals.task_enqueued.disconnect, enqueued)
        first, second = tasks.only_one.enqueue("a"), tasks.only_one.enqueue("a")
        self.assertEqual(first.id, second.id)
        self.assertEqual((len(run_all()), enqueued.call_count), (1, 1))


class RunTests(EmptyServer, SimpleTestCase):
    databases = ("default",)

    def run_one(self, one, *args, **kwargs):
        result = one.enqueue(*args, **kwargs)
        with self.assertLogs(level="DEBUG"):
            run_all()
        result.refresh()
        return result

    def test_success(self):
        for one, value in (
            (tasks.product, 6),
            (tasks.nothing_async, None),
            (tasks.twice_async, 12),
        ):
            result = self.run_one(one, 6)
            self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
            self.assertTrue(result.is_finished)
            self.assertEqual(result.return_value, value)
            self.assertEqual((result.args, result.attempts, result.worker_ids), ([6], 1, ["tests"]))
            self.assertLessEqual(result.enqueued_at, result.started_at)
            self.assertLessEqual(result.started_at, result.finished_at)
            self.assertEqual(result.started_at, result.last_attempted_at)
            self.assertEqual(one.get_result(result.id), result)

    def test_failure(self):
        for one, kind, text in (
            (tasks.fails, ValueError, "This task failed due to ValueError"),
            (tasks.exits, SystemExit, "This task failed due to SystemExit"),
            (tasks.fails_async, LookupError, "not there"),
        ):
            result = self.run_one(one)
            self.assertEqual((result.status, result.attempts), (TaskResultStatus.FAILED, 1))
            with self.assertRaisesMessage(ValueError, "Task failed"):
                _ = result.return_value
            [error] = result.errors
            self.assertIs(error.exception_class, kind)
            self.assertTrue(error.traceback.endswith(f"{kind.__name__}: {text}\n"))
            self.assertIsNotNone(result.finished_at)

    def test_task_fails_when_it_returns_a_coroutine(self):
        for settings in ({}, {"result_ttl": 0}):
            with options(**settings), self.assertLogs("jobq.job") as logged:
                tasks.returns_coroutine.enqueue()
                run_all()
            self.assertIn(
                "was dead-lettered: orders.tasks.returns_coroutine returned", logged.output[-1]
            )

    def test_errors_that_say_little(self):
        self.assertIn(
            "ValueError(ValueError(", self.run_one(tasks.nested_error).errors[0].traceback
        )
        result = self.run_one(tasks.returns_object)
        self.assertEqual(result.errors[0].exception_class, TypeError)
        self.assertIn("Unsupported type", result.errors[0].traceback)

    def test_context(self):
        result = self.run_one(tasks.own_id)
        self.assertEqual(result.return_value, result.id)
        self.assertEqual(self.run_one(tasks.expects_attempt, 1).return_value, ["tests"])

    def test_each_public_state_has_a_status_of_django(self):
        ready, running = TaskResultStatus.READY, TaskResultStatus.RUNNING
        done = mock.Mock(done=True)
        expected = {
            "scheduled": ready, "queued": ready, "retrying": ready, "running": running,
            "done": TaskResultStatus.SUCCESSFUL, "failed": TaskResultStatus.FAILED,
            "unknown": TaskResultStatus.SUCCESSFUL,
        }  # fmt: skip
        for stored, word in STATE_OF.items():
            self.assertEqual(status_of(Status(stored), [done]), expected[word], stored)

    def test_retries_keep_their_errors(self):
        handler = mock.Mock()
        signals.task_finished.connect(handler)
        self.addCleanup(signals.task_finished.disconnect, handler)
        path = self.enterContext(tempfile.TemporaryDirectory())
        result = tasks.fails_twice.enqueue(f"{path}/tries")
        words = []
        while not result.is_finished:
            # One attempt at a time: on a slow machine the retry is due before `run_all` ends.
            run_all(1)
            result.refresh()
            words.append(result.status)
        self.assertEqual(set(words), {TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL})
        self.assertEqual((result.return_value, result.attempts), ("third", 3))
        self.assertEqual([one.exception_class for one in result.errors], [ConnectionError] * 2)
        self.assertLess(result.started_at, result.last_attempted_at)
        self.assertEqual(handler.call_count, 1)

    def test_signals_and_log_lines_name_the_task(self):
        seen = []
        handlers = {}
        for name in ("task_enqueued", "task_started", "task_finished"):

            def receive(sender, task_result, name=name, **_):
                seen.append((name, sender, task_result.id, str(task_result.status)))

            handlers[name] = receive
            getattr(signals, name).connect(receive)
            self.addCleanup(getattr(signals, name).disconnect, receive)

        def broken(**_):
            raise RuntimeError("a receiver is broken")

        signals.task_finished.connect(broken)
        self.addCleanup(signals.task_finished.disconnect, broken)
        result = self.run_one(tasks.nothing)
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(
            seen,
            [
                ("task_enqueued", JobqBackend, result.id, "READY"),
                ("task_started", JobqBackend, result.id, "RUNNING"),
                ("task_finished", JobqBackend, result.id, "SUCCESSFUL"),
            ],
        )

    def test_cancelled_task_has_failed_once_it_was_started(self):
        waiting = tasks.nothing.enqueue()
        queue = Queue("default")
        queue.cancel(waiting.id.partition("/")[2])
        with self.assertRaises(TaskResultDoesNotExist):
            waiting.refresh()
        running = tasks.nothing.enqueue()
        [message] = queue.dequeue(1).messages
        call, tried = Called("orders.tasks.nothing"), Tried(1, message.generation, "tests", 1)
        Records(default_client(), "default").write(message.mid, message.fence, tried, call, 60)
        running.refresh()
        self.assertEqual((running.status, running.attempts), (TaskResultStatus.RUNNING, 1))
        queue.cancel(message.mid)
        running.refresh()
        self.assertEqual((running.status, running.errors), (TaskResultStatus.FAILED, []))

    def test_dead_task_without_a_record_has_failed_for_the_reason_of_the_queue(self):
        result = tasks.fails.enqueue()
        run_all()
        queue, _, mid = result.id.partition("/")
        default_client().command("DEL", f"jobq:{{{queue}}}:django:{mid}")
        found = tasks.fails.get_result(result.id)
        self.assertEqual((found.status, found.attempts), (TaskResultStatus.FAILED, 0))
        self.assertIn("This task failed due to ValueError", found.errors[0].traceback)

    def test_record_expires_and_none_is_kept_without_result_ttl(self):
        result = tasks.nothing.enqueue()
        run_all()
        queue, _, mid = result.id.partition("/")
        key = f"jobq:{{{queue}}}:django:{mid}"
        self.assertTrue(0 < default_client().command("PTTL", key) <= 86_400_000)
        with options(result_ttl=0):
            result = tasks.returns_object.enqueue()
            run_all()
            self.assertEqual(
                default_client().command("KEYS", "*django*", routed_by="{default}"), [key.encode()]
            )
            self.assertFalse(task_backends["default"].supports_get_result)
            with self.assertRaises(NotImplementedError):
                result.refresh()

    def test_late_attempt_does_not_change_what_a_newer_one_recorded(self):
        result = tasks.product.enqueue(3)
        run_all()
        mid = result.id.partition("/")[2]
        records = Records(default_client(), "default")
        record = records.read_record(mid)
        [newer] = record.attempts
        late = Tried(1, newer.generation, "late", 1, 2, error="builtins.OSError", traceback="late")
        records.write(mid, 0, late, record.called, 60)
        result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, 3))

    def test_forged_records_make_an_error_or_nothing(self):
        result = tasks.product.enqueue(3)
        queue, _, mid = result.id.partition("/")
        key = f"jobq:{{{queue}}}:django:{mid}"
        for field, content in (
            ("call", "{"), ("call", '{"task":1}'), ("7", "[]"), ("7", '{"attempt":0}'),
            ("7", "[" * 100_000), ("call", b"\xff"), ("7", "jobq-s1 x y\nz"),
        ):  # fmt: skip
            with self.subTest(content[:20]):
                default_client().command("DEL", key)
                default_client().command("HSET", key, field, content)
                with self.assertRaises(CodecError):
                    result.refresh()
        records = Records(default_client(), "default")
        tried = Tried(900_000, "g", "w", 1, 2, error="this.no_such", traceback="t")
        default_client().command("DEL", key)
        records.write(mid, 1, tried, Called("sys.exit", sent=Sent(backend="x", run_after="x")), 60)
        with self.assertRaises(TaskResultDoesNotExist):
            result.refresh()
        sent = Sent(backend="x", priority=9, queue="x", run_after="x")
        records.write(mid, 1, tried, Called("orders.tasks.product", sent=sent), 60)
        Queue("default").cancel(mid)
        found = tasks.product.get_result(result.id)
        self.assertEqual((found.task, found.attempts), (tasks.product, 10_000))
        with self.assertRaisesMessage(ImportError, "this.no_such"):
            _ = found.errors[0].exception_class

    def test_sealed_tasks_have_sealed_records(self):
        settings = {"JOBQ_CODEC": "sign", "JOBQ_CODEC_KEYS": "k1:" + "a" * 64}
        with mock.patch.dict("os.environ", settings), NewDefaultClient():
            result = tasks.product.enqueue(3)
            found = Queue("default").dequeue(1).messages
            executor = Executor(default_registry, worker="tests", seal=seal_of(default_client()))
            call = executor.resolve("default", found[0])
            Queue("default").finish([executor.run(call)])
            result.refresh()
            self.assertEqual(result.return_value, 3)
            mid = result.id.partition("/")[2]
            fields = default_client().command("HGETALL", f"jobq:{{default}}:django:{mid}")
            values = fields.values() if isinstance(fields, dict) else fields[1::2]
            self.assertTrue(all(value.startswith(b"jobq-s1 k1 ") for value in values))


class CommitTests(EmptyServer, TransactionTestCase):
    def test_at_once_by_default(self):
        with transaction.atomic():
            self.assertIsNotNone(tasks.nothing.enqueue().enqueued_at)
            transaction.set_rollback(True)
        self.assertEqual(len(run_all()), 1)

    def test_on_commit_and_nothing_after_a_rollback(self):
        with options(on_commit="default"):
            with transaction.atomic():
                order = Order.objects.create(name="bolt")
                result = tasks.order_name.enqueue(order.pk)
                self.assertIsNone(result.enqueued_at)
                self.assertEqual(run_all(), [])
                with self.assertRaises(TaskResultDoesNotExist):
                    tasks.order_name.get_result(result.id)
            self.assertIsNotNone(result.enqueued_at)
            self.assertEqual(run_all(), [result.id])
            result.refresh()
            self.assertEqual(result.return_value, "bolt")
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                tasks.nothing.enqueue()
                1 / 0
            self.assertEqual(run_all(), [])
            self.assertIsNotNone(tasks.nothing.enqueue().enqueued_at)

    async def test_async_on_commit_outside_a_transaction_is_at_once(self):
        with options(on_commit="default"):
            self.assertIsNotNone((await tasks.nothing.aenqueue()).enqueued_at)

    def test_function_for_one_task(self):
        with transaction.atomic():
            result = enqueue_on_commit(tasks.product, 2, other=5, using="default")
            self.assertEqual((result.enqueued_at, run_all()), (None, []))
        self.assertEqual(run_all(), [result.id])
        with override_settings(TASKS={"default": {"BACKEND": DUMMY}}):
            with transaction.atomic():
                self.assertIsNone(enqueue_on_commit(tasks.product, 2))
                self.assertEqual(task_backends["default"].results, [])
            self.assertEqual(len(task_backends["default"].results), 1)


class KitTests(SimpleTestCase):
    def test_kit_runs_tasks(self):
        kit = kit_for(self, strict=True)
        result = tasks.product.enqueue(2, other=4)
        kit.assert_enqueued(job_of(tasks.product), args=(2,), kwargs={"other": 4}, count=1)
        self.assertEqual(kit.drain().done, 1)
        result.refresh()
        self.assertEqual(result.return_value, 8)

    def test_tasks_have_results_when_the_queue_is_partitioned(self):
        # Other tests use the default client, which would look for the partitions.
        with NewDefaultClient():
            kit = kit_for(self, strict=True)
            partition(default_client(), "default", 3)
            results = [tasks.product.enqueue(number) for number in range(9)]
            failed = tasks.fails.enqueue()
            self.assertTrue(all(one.id.startswith("default/") for one in (*results, failed)))
            self.assertEqual(tasks.fails.get_result(failed.id).status, TaskResultStatus.READY)
            done = kit.drain(raises=False)
            self.assertEqual((done.done, done.dead), (9, 1))
            for result in (*results, failed):
                result.refresh()
            self.assertEqual([result.return_value for result in results], [*range(9)])
            self.assertEqual((failed.status, failed.attempts), (TaskResultStatus.FAILED, 1))
            self.assertEqual(failed.errors[0].exception_class, ValueError)

    def test_only_tasks_of_this_backend_have_a_job(self):
        with override_settings(TASKS={"default": {"BACKEND": DUMMY}}):
            other = task(tests_function)
        with self.assertRaisesMessage(ConfigError, "orders.tests.tests_function"):
            job_of(other)


class OrmTests(TestCase):
    """The order exists only in the test's transaction, which belongs to the connection of the test's thread."""

    def setUp(self):
        self.kit = kit_for(self, strict=True)
        self.order = Order.objects.create(name="before")

    def check(self, result, value, name):
        result.refresh()
        self.assertEqual((str(result.status), result.errors), ("SUCCESSFUL", []))
        self.assertEqual(result.return_value, value)
        self.order.refresh_from_db()
        self.assertEqual(self.order.name, name)

    def test_async_task_sees_the_transaction_of_the_test(self):
        with self.captureOnCommitCallbacks(execute=True):
            result = tasks.rename_order.enqueue(self.order.pk, "after")
        self.assertEqual(self.kit.drain().done, 1)
        self.check(result, 1, "after")

    async def test_tasks_see_the_transaction_of_an_async_test(self):
        results = [
            await tasks.rename_order.aenqueue(self.order.pk, "after"),
            await tasks.add_order.aenqueue("second"),
        ]
        self.assertEqual((await self.kit.adrain()).done, 2)
        await sync_to_async(self.check)(results[0], 1, "after")
        self.assertEqual(await Order.objects.acount(), 2)


class OutboxTests(TestCase):
    """The rows exist only in the test's transaction, so the kit relays them on its connection."""

    def setUp(self):
        self.kit = kit_for(self, strict=True)
        self.enterContext(options(outbox="default"))

    def test_drain_relays_tasks_of_the_transaction_of_the_test(self):
        result = tasks.add_order.enqueue("first")
        self.assertEqual(self.kit.all_enqueued(), [])
        with self.assertRaises(KeyError), transaction.atomic():
            tasks.add_order.enqueue("rolled back")
            raise KeyError
        self.assertEqual(self.kit.drain().done, 1)
        result.refresh()
        self.assertEqual(str(result.status), "SUCCESSFUL")
        self.assertEqual([order.name for order in Order.objects.all()], ["first"])
        self.assertEqual(self.kit.drain().done, 0)

    def test_drain_runs_a_delayed_task_at_its_time(self):
        tasks.add_order.using(run_after=timezone.now() + timedelta(hours=2)).enqueue("later")
        self.assertEqual(self.kit.drain()[:4], (0, 0, 0, 1))
        self.kit.clock.move(7_190)
        self.assertEqual((self.kit.drain().done, self.kit.drain(delayed=True).done), (0, 1))

    async def test_adrain_relays_on_the_connection_of_an_async_test(self):
        await tasks.add_order.aenqueue("first")
        self.assertEqual((await self.kit.adrain()).done, 1)
        self.assertEqual(await Order.objects.acount(), 1)


def tests_function():
    pass


class SettingsTests(SimpleTestCase):
    def test_bad_options_are_refused_with_the_remedy(self):
        for given, text in (
            (
                {"retry": 1},
                "unknown option 'retry'; options are on_commit, outbox, priority_queues",
            ),
            ({"result_ttl": "soon"}, "soon"),
            ({"retries": -1}, "retries=-1"),
            ({"priority_queues": {0: "x"}}, "priority_queues="),
            ({"priority_queues": {1: "a b"}}, "a b"),
            ({"priority_queues": {1: "low/3"}}, "belongs to a partition"),
        ):
            with self.subTest(given), options(**given):
                with self.assertRaisesMessage(InvalidBackend, text):
                    task_backends["default"].check()
        for given in ({"queue": "x"}, {"mid": "x"}, {"no_such": 1}, {"retries": -1}):
            with self.subTest(given), self.assertRaises(ConfigError):
                task_options(**given)

    def test_check(self):
        with options(on_commit="no_such"):
            ids = [one.id for one in task_backends["default"].check()]
        self.assertEqual(ids, ["jobq.E001"])
        call_command("check")


class NewDefaultClient:
    """Within it the default client has the settings of the environment as they are now."""

    def __enter__(self):
        self.before = default_client()
        set_default_client(connect())

    def __exit__(self, *_):
        set_default_client(self.before)
