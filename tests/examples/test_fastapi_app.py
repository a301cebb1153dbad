"""`examples/fastapi_app`, served by uvicorn."""

from __future__ import annotations

import httpx
import pytest

from tests.client.deployments import free_port


@pytest.fixture
def http():
    """A client that waits."""
    with httpx.Client(timeout=120) as client:
        yield client


def answers(http, url):
    try:
        return http.get(f"{url}/openapi.json").is_success
    except httpx.TransportError:
        return False


def test_request_enqueues_and_another_gets_the_result(run, until, http):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    run(
        "-m",
        "uvicorn",
        "examples.fastapi_app.app:app",
        "--port",
        str(port),
        "--log-level",
        "warning",
    )
    until(lambda: answers(http, url))

    created = http.post(f"{url}/reports", json={"numbers": [3, 1, 2]})
    assert created.status_code == 202
    href = created.json()["href"]
    assert http.get(url + href).json()["state"] == "queued"

    run(
        "-m",
        "jobq",
        "worker",
        "--import",
        "examples.fastapi_app.app",
        "--queues",
        "reports",
        "--processes",
        "1",
    )
    until(lambda: http.get(url + href, params={"wait": 30}).json()["state"] == "done")
    assert http.get(url + href).json()["result"] == {"mean": 2.0, "median": 2.0}

    broken = http.post(f"{url}/reports", json={"numbers": []}).json()["href"]
    until(lambda: http.get(url + broken, params={"wait": 30}).json()["state"] == "failed")
    assert "StatisticsError" in http.get(url + broken).json()["error"]
    assert http.get(f"{url}/reports/nobody-made-this").status_code == 404
    assert http.post(f"{url}/reports", json={"numbers": "x"}).status_code == 422
