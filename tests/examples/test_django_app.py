"""`examples/django_app`, copied to an empty folder and served by `manage.py runserver`."""

from __future__ import annotations

import shutil

import httpx
import pytest

from tests import tools
from tests.client.deployments import free_port
from tests.examples.conftest import ROOT

django = tools.library("django")
if django.VERSION < (6, 0):
    tools.library("django_tasks")

pytestmark = pytest.mark.one_server


def answers(http):
    try:
        return http.get("/").is_success
    except httpx.TransportError:
        return False


def test_page_shows_progress_and_cancels_when_a_report_runs(run, until, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "django_app", folder)
    port = free_port()
    run("manage.py", "runserver", str(port), "--noreload", cwd=folder)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        until(lambda: answers(http))
        page = http.get("/").text
        assert "<progress" in page and "Cancel" in page
        assert http.post("/reports", json={"numbers": [1]}).status_code == 403
        http.headers["x-csrftoken"] = http.cookies["csrftoken"]

        created = http.post("/reports", json={"numbers": [3, 1, 2]})
        assert created.status_code == 202
        href = created.json()["href"]
        assert http.get(href).json()["state"] == "queued"
        waiting = http.post("/reports", json={"numbers": [1]}).json()["href"]
        assert http.post(f"{waiting}/cancel").json()["state"] == "cancelled"

        run("manage.py", "jobq", "worker", "--processes", "1", cwd=folder)
        until(lambda: http.get(href).json()["state"] == "done")
        assert http.get(href).json()["result"] == {"mean": 2.0, "median": 2.0}
        running = http.post("/reports", json={"numbers": [1], "seconds": 600}).json()["href"]
        until(lambda: http.get(running).json()["state"] == "running")
        assert http.post(f"{running}/cancel").json()["state"] == "cancelled"
        assert http.get(running).json()["ended"] is True

        broken = http.post("/reports", json={"numbers": []}).json()["href"]
        until(lambda: http.get(broken).json()["state"] == "failed")
        assert "StatisticsError" in http.get(broken).json()["error"]
        assert http.get("/reports/nobody-made-this").status_code == 404
        for body in ({"numbers": "x"}, {"numbers": None}, [], {}):
            assert http.post("/reports", json=body).status_code == 400
