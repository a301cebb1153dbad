"""Test the job without Spark."""

from __future__ import annotations

from typing import Any

from examples.spark.spark_jobs import remind


def test_reminder_names_the_cart(jobq: Any) -> None:
    remind.enqueue(7, "c-7")
    jobq.assert_enqueued(remind, args=(7, "c-7"), queue="mail")
    assert jobq.drain().done == 1
    assert jobq.run_job(remind, 7, "c-7").value == "7: your cart c-7 waits"


def test_cart_that_is_gone_is_dead_after_all_attempts(jobq: Any) -> None:
    remind.enqueue(9, "c-9")
    assert jobq.drain(raises=False).dead == 1
    jobq.assert_dead(remind, reason="no cart c-9")
