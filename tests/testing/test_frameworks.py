"""unittest and Django's TestCase, by plain functions; what kits do that no other test shows."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.client.clock import wall
from jobq.config import CodecSettings
from jobq.jobs.codec import decode
from jobq.jobs.registry import job
from jobq.testing import kit
from jobq.topics.topic import Topic

pytestmark = pytest.mark.one_server
ROOT = Path(__file__).resolve().parents[2]
DJANGO = """
    import sys
    import unittest
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )
    django.setup()

    from django.contrib.auth.models import User
    from django.db import transaction
    from django.test import TestCase
    from django.test.runner import DiscoverRunner
    import jobq
    from jobq.testing import kit_for


    @jobq.job(name="greet")
    def greet(name):
        User.objects.filter(username=name).update(first_name="greeted")


    def sign_up(name):
        User.objects.create(username=name)
        transaction.on_commit(lambda: greet.enqueue(name))


    class Base(TestCase):
        def setUp(self):
            self.jobq = kit_for(self, strict=True)

        def test_commit_enqueues(self):
            with self.captureOnCommitCallbacks(execute=True):
                sign_up("ada")
            self.jobq.assert_enqueued(greet, args=("ada",))
            self.assertEqual(self.jobq.drain().done, 1)
            self.assertEqual(User.objects.get().first_name, "greeted")

        def test_rollback_enqueues_nothing(self):
            sign_up("bob")
            self.jobq.refute_enqueued(greet)


    class Left(unittest.TestCase):
        def test_leftover(self):
            kit_for(self, strict=True)
            greet.enqueue("left")


    class Runner(DiscoverRunner):
        def build_suite(self, *_, **__):
            load = unittest.defaultTestLoader.loadTestsFromTestCase
            return unittest.TestSuite([load(Base), load(Left)])


    sys.exit(Runner(verbosity=2).run_tests([]))
"""


def test_django_and_unittest_have_the_kit_for_a_test_case(tmp_path):
    pytest.importorskip("django")
    (tmp_path / "program.py").write_text(textwrap.dedent(DJANGO))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOBQ", "REDIS", "DJANGO"))}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True,
        env={**kept, "PYTHONPATH": str(ROOT), "JOBQ_URL": "redis://127.0.0.1:1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Ran 3 tests" in done.stderr
    assert "test_commit_enqueues (__main__.Base.test_commit_enqueues) ... ok" in done.stderr
    assert (
        "test_rollback_enqueues_nothing (__main__.Base.test_rollback_enqueues_nothing) ... ok"
        in done.stderr
    )
    assert "AssertionError: 1 call didn't run before the test ended" in done.stderr


def test_calls_that_must_be_durable_are_accepted(jobq, registry):
    kept = job(name="kept", registry=registry, durability="disk")(lambda: None)
    for level in ("disk", "replicas=2"):
        assert kept.options(durability=level).enqueue().accepted
    assert jobq.drain().done == 2


def test_sealed_calls_are_read(registry, monkeypatch):
    monkeypatch.setenv("JOBQ_CODEC", "sign")
    monkeypatch.setenv("JOBQ_CODEC_KEYS", "k:" + "A" * 43 + "=")
    seen = []
    note = job(name="note", registry=registry, result_ttl=60)(seen.append)
    with kit(registry=registry) as jobq:
        assert isinstance(jobq.client.settings.codec, CodecSettings)
        receipt = note.enqueue("secret")
        [call] = jobq.assert_enqueued(note, args=("secret",))
        with pytest.raises(Exception, match="not"):
            decode(call.content)
        assert jobq.drain().done == 1
        assert receipt.result(timeout=60) is None
    assert seen == ["secret"]


def test_topics_go_by_the_clock(jobq):
    topic = Topic("log", jobq.client)
    topic.append(b"a")
    jobq.clock.move(timedelta(days=3))
    topic.append(b"b")
    first, second = topic.read()
    assert second.at - first.at >= 3 * 86_400_000
    assert abs(second.at - wall.ms()) < 600_000
