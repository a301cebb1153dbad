"""Test the requests, and the job that they enqueue."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from examples.fastapi_app.app import app, report


@pytest.fixture
def web() -> TestClient:
    """Return an HTTP client of the application."""
    return TestClient(app)


def test_report_is_made_between_two_requests(jobq: Any, web: TestClient) -> None:
    asked = web.post("/reports", json={"numbers": [3, 1, 2]})
    assert asked.status_code == 202
    jobq.assert_enqueued(report, args=([3, 1, 2],), queue="reports", mid=asked.json()["mid"])
    assert web.get(asked.json()["href"]).json()["state"] == "queued"
    jobq.drain()
    shown = web.get(asked.json()["href"]).json()
    assert (shown["state"], shown["result"]) == ("done", {"mean": 2.0, "median": 2.0})


def test_report_is_followed_until_it_is_cancelled(jobq: Any, web: TestClient) -> None:
    href = web.post("/reports", json={"numbers": [1]}).json()["href"]
    assert web.post(f"{href}/cancel").json()["state"] == "cancelled"
    with web.stream("GET", f"{href}/events") as events:
        [line] = [line for line in events.iter_lines() if line]
    assert '"state": "cancelled"' in line
    assert web.get(href).json()["ended"] is True
    assert web.get("/reports/none").status_code == 404


def test_page_has_a_progress_bar_and_a_cancel_button(web: TestClient) -> None:
    text = web.get("/").text
    assert "<progress" in text and "Cancel" in text
    assert 'element("cancel").hidden = ended' in text


@pytest.mark.jobq(mode="inline")
def test_report_of_nothing_is_dead_at_once(jobq: Any, web: TestClient) -> None:
    with pytest.raises(Exception, match="fmean requires at least one data point"):
        web.post("/reports", json={"numbers": []})
    jobq.assert_dead(report, count=1)
