"""Code bases in the shape of the example projects of Celery, RQ and Dramatiq, read by `jobq migrate check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.cli import main
from jobq.errors import ConfigError
from jobq.migrate.reading import check
from jobq.migrate.rules import rules

HERE = Path(__file__).parent


def lines(folder, *kinds):
    """What was found in a fixture: place, kind and name, of some kinds."""
    return [
        f"{finding.file}:{finding.line} {finding.kind} {finding.what}"
        for finding in check(HERE / folder)
        if not kinds or finding.kind in kinds
    ]


def test_celery_code_base_is_read():
    assert lines("celery_shop", "none") == [
        "proj/celery_app.py:9 none accept_content",
        "proj/celery_app.py:12 none task_annotations",
        "proj/celery_app.py:15 none crontab()",
        "proj/tasks.py:2 none import celery.signals.worker_ready",
        "proj/tasks.py:14 none self.replace()",
        "proj/tasks.py:17 none priority=",
        "proj/tasks.py:17 none serializer=",
        "proj/tasks.py:22 none task bill",
        "proj/views.py:8 none priority=",
        "proj/views.py:10 none a lambda",
    ]
    differs = lines("celery_shop", "differs")
    for expected in (
        "proj/celery_app.py:5 differs broker=", "proj/celery_app.py:10 differs worker_prefetch_multiplier",
        "proj/celery_app.py:11 differs broker_transport_options", "proj/tasks.py:12 differs task fetch",
        "proj/tasks.py:12 differs rate_limit=", "proj/tasks.py:22 differs time_limit=", "proj/views.py:9 differs now()",
    ):  # fmt: skip
        assert expected in differs
    same = lines("celery_shop", "same")
    for expected in (
        "proj/tasks.py:12 same retry_backoff=", "proj/tasks.py:17 same task parse", "proj/views.py:7 same .delay()",
        "proj/views.py:8 same countdown=", "proj/tasks.py:14 same .s()", "proj/celery_app.py:8 same task_serializer",
    ):  # fmt: skip
        assert expected in same


def test_rq_code_base_is_read():
    assert lines("rq_site", "none") == [
        "site.py:8 none class Own(rq.Worker)",
        "site.py:19 none at_front=",
        "site.py:20 none a set",
    ]
    differs = lines("rq_site", "differs")
    for expected in (
        "site.py:5 differs is_async=", "site.py:14 differs .meta",
        "site.py:15 differs .save_meta", "site.py:19 differs .enqueue()", "site.py:19 differs job_id=",
        "site.py:20 differs depends_on=", "site.py:21 differs .get_status", "site.py:21 differs fetch()",
    ):  # fmt: skip
        assert expected in differs


def test_retries_that_nobody_asked_for_are_named():
    texts = {
        finding.line: finding.text
        for finding in check(HERE / "rq_site")
        if finding.what == ".enqueue()"
    }
    assert ("five retries" in texts[19], "five retries" in texts[20]) == (True, False)
    texts = {f.what: f.text for f in check(HERE / "dramatiq_feed") if f.what.startswith("task")}
    assert ("20 over days" in texts["task count"], "20 over days" in texts["task fetch"]) == (
        True,
        False,
    )


def test_dramatiq_code_base_is_read():
    assert lines("dramatiq_feed", "none") == ["feed.py:18 none priority="]
    differs = lines("dramatiq_feed", "differs")
    for expected in (
        "feed.py:6 differs RabbitmqBroker()", "feed.py:9 differs class Log(dramatiq.middleware.Middleware)",
        "feed.py:13 differs min_backoff=", "feed.py:13 differs time_limit=", "feed.py:25 differs .send_with_options()",
        "feed.py:26 differs group()",
    ):  # fmt: skip
        assert expected in differs
    assert "feed.py:24 same .send()" in lines("dramatiq_feed")


def test_nothing_is_imported_and_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.py").write_text("import rq\nraise SystemExit('imported')\n")
    (tmp_path / "b.py").write_text("import rq\nprint 'Python 2'\n")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "c.py").write_text("import celery.bootsteps\n")
    [known, unread] = check(tmp_path)
    assert (known.file, known.kind) == ("a.py", "same")
    assert (unread.file, unread.line, unread.kind) == ("b.py", 2, "none")
    assert "not checked" in unread.text
    (tmp_path / "b.py").unlink()
    (tmp_path / "a.py").write_text("print(1)\n")
    with pytest.raises(ConfigError, match="imports Celery, RQ or Dramatiq"):
        check(tmp_path)


def test_command_prints_places_and_exits_with_one_for_what_has_no_equivalent(capsys, tmp_path):
    assert main(["migrate", "check", str(HERE / "dramatiq_feed"), "--only", "none"]) == 1
    seen = capsys.readouterr()
    assert seen.out == (
        "feed.py:18: priority=: no equivalent: use a queue for each priority and jobq worker --strict "
        "(docs/interop/migrating.md#from-dramatiq)\n"
    )
    assert "1 no equivalent" in seen.err
    (tmp_path / "a.py").write_text("from celery import shared_task\n@shared_task\ndef a(): pass\n")
    assert main(["migrate", "check", str(tmp_path), "--json"]) == 0


def test_each_rule_has_a_kind_and_a_text():
    every = [rule for of_system in rules().values() for rule in of_system]
    assert len(every) > 100
    assert all(rule.kind in ("same", "differs", "none") and rule.text for rule in every)
