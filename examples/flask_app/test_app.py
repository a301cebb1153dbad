"""Test the views, and the job that they enqueue."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from examples.flask_app.app import app, letter


@pytest.fixture
def web() -> FlaskClient:
    """Return an HTTP client of the application."""
    return app.test_client()


def test_letter_is_written_between_two_requests(jobq: Any, web: FlaskClient) -> None:
    asked = web.post("/letters", json={"name": "Ada"})
    assert asked.status_code == 202
    jobq.assert_enqueued(letter, args=("Ada",), queue="letters", mid=asked.json["mid"])
    assert web.get(asked.json["href"]).json == {"status": "queued"}
    jobq.drain()
    assert web.get(asked.json["href"]).json == {"status": "done", "result": "Hello, Ada!"}
