"""A module of Celery's tasks on a real worker, by other imports alone."""

from __future__ import annotations

import pytest

from jobq.errors import JobFailedError
from jobq.queue.partitioning import partition
from jobq.testing import Kit
from tests.waiting import until


@pytest.fixture(scope="module")
def shop():
    """The tasks, in a registry as that of a program that has no others."""
    import tests.celery.shop_tasks as module

    return module


@pytest.fixture
def jobq(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOP", str(tmp_path))
    with Kit(server.url) as kit:
        yield kit


@pytest.fixture
def worker(jobq, shop):
    with jobq.worker(queues=["celery", "images", "high"]) as started:
        yield started


@pytest.fixture
def notes(tmp_path):
    def read():
        path = tmp_path / "notes"
        return path.read_text().splitlines() if path.exists() else []

    return read


def test_eight_tasks(worker, shop, notes, tmp_path):
    # Results, and who runs what.
    assert shop.price.delay("pen").get(timeout=60) == 3
    result = shop.total.apply_async(([1, 2],), {"currency": "USD"}, queue="high")
    assert (result.get(timeout=60), result.state, result.successful()) == ("3 USD", "SUCCESS", True)
    # Retries that the task asks for.
    mail = shop.send_mail.apply_async(("a@example.org",), {"fails": 2}, countdown=0.01)
    assert mail.get(timeout=60) == "a@example.org"
    # Retries of autoretry_for, and the end.
    bad = shop.fetch.apply_async(("x",), link_error=shop.alert.s())
    with pytest.raises(OSError, match="OSError: x") as caught:
        bad.get(timeout=60)
    assert isinstance(caught.value, JobFailedError)
    assert (bad.state, bad.failed(), bad.ready()) == ("FAILURE", True, True)
    # A soft time limit.
    assert shop.make_thumbnail.delay("huge").get(timeout=60) == "too large"
    # A state of its own, and a chord from a running task.
    running = shop.report.delay(1)
    until(lambda: running.state == "PROGRESS")
    assert running.info == {"current": 1, "total": 4}
    (tmp_path / "go").touch()
    from jobq.celery.result import AsyncResult

    assert AsyncResult(running.get(timeout=60)).get(timeout=60) == "10 EUR"
    shop.clean_up.delay(days=7)
    assert shop.order().apply_async().get(timeout=60) == "16 USD"
    # A callback of a single call.
    shop.price.apply_async(("ink",), link=shop.double.s() | shop.send_mail.si("b@example.org"))
    until(lambda: "mail b@example.org 0 False" in notes() and "clean_up 7" in notes())
    lines = notes()
    assert lines[0] == "connected"
    assert "mail a@example.org 2 False" in lines
    assert lines.count("fetch x") == 3
    assert lines.count("on_retry fetch OSError('x')") == 2
    assert lines.count("on_failure fetch OSError ['x']") == 1
    assert lines.count("failure fetch OSError('x')") == 1
    assert "alert OSError True" in lines
    assert "on_success total 10 EUR" in lines
    assert "prerun make_thumbnail" in lines


def test_results_are_found_and_forgotten_when_the_queue_is_partitioned(jobq, shop):
    partition(jobq.client, "celery", 3)
    results = [shop.double.delay(number) for number in range(6)]
    bad, revoked = shop.price.delay("no"), shop.double.delay(7)
    revoked.revoke()
    jobq.drain(raises=False)

    partition(jobq.client, "celery", 2)
    assert [result.get(timeout=1) for result in results] == [0, 2, 4, 6, 8, 10]
    assert (bad.state, revoked.state) == ("FAILURE", "REVOKED")
    assert bad.traceback.startswith("KeyError")
    results[0].forget()
    assert [result.state for result in results] == ["PENDING", *["SUCCESS"] * 5]
