"""`examples/flask_app`, served by Flask, with its own worker command."""

from __future__ import annotations

import httpx

from tests.client.deployments import free_port

#: What is checked here is the same on each server.
APP = ("-m", "flask", "--app", "examples.flask_app.app")


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/letters/none").status_code == 404
    except httpx.TransportError:
        return False


def test_view_enqueues_and_the_job_runs_in_the_context_of_the_application(run, until):
    port = free_port()
    url, env = f"http://127.0.0.1:{port}", {"FLASK_GREETING": "Dear"}
    run(*APP, "run", "--port", str(port), env=env)
    until(lambda: answers(url))

    created = httpx.post(f"{url}/letters", json={"name": "Ada"})
    assert created.status_code == 202
    href = created.json()["href"]
    assert httpx.get(url + href).json() == {"status": "queued"}

    worker = run(*APP, "jobq", "worker", "--queues", "letters", "--processes", "1", env=env)
    until(lambda: httpx.get(url + href).json()["status"] == "done")
    assert httpx.get(url + href).json() == {"status": "done", "result": "Dear, Ada!"}

    broken = httpx.post(f"{url}/letters", json={"name": ""}).json()["href"]
    until(lambda: httpx.get(url + broken).status_code == 500)
    assert httpx.get(f"{url}/letters/nobody-made-this").status_code == 404
    worker.terminate()
    assert worker.wait(120) == 0


def test_command_of_flask_answers_with_the_help_and_exit_codes_of_jobq(run):
    helped = run(*APP, "jobq", "worker", "--help")
    said, _ = helped.communicate(timeout=120)
    assert helped.returncode == 0 and "--shutdown-timeout" in said
    wrong = run(*APP, "jobq", "status", "nobody-made-this", "-q", "letters")
    wrong.communicate(timeout=120)
    assert wrong.returncode == 1
