"""`examples/fastapi_app`, served by uvicorn."""

from __future__ import annotations

import socket

import httpx


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url):
    try:
        return httpx.get(f"{url}/openapi.json").is_success
    except httpx.TransportError:
        return False


def test_request_enqueues_and_another_gets_the_result(run, until):
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
    until(lambda: answers(url))

    created = httpx.post(f"{url}/reports", json={"numbers": [3, 1, 2]})
    assert created.status_code == 202
    href = created.json()["href"]
    assert httpx.get(url + href).json() == {"status": "queued"}

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
    done = httpx.get(url + href, params={"wait": 30}, timeout=40).json()
    assert done == {"status": "done", "result": {"mean": 2.0, "median": 2.0}}

    broken = httpx.post(f"{url}/reports", json={"numbers": []}).json()["href"]
    failed = httpx.get(url + broken, params={"wait": 30}, timeout=40)
    assert failed.status_code == 500
    assert "StatisticsError" in failed.json()["detail"]
    assert httpx.get(f"{url}/reports/nobody-made-this").status_code == 404
    assert httpx.post(f"{url}/reports", json={"numbers": "x"}).status_code == 422
