"""A Django project with Celery, as its documentation lays it out, on a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tools

pytestmark = pytest.mark.one_server
ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "site_of_shop/settings.py": """
SECRET_KEY = "of the tests"
INSTALLED_APPS = ["shop_app"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
CELERY_TASK_DEFAULT_QUEUE = "web"
CELERY_BEAT_SCHEDULE = {"sums": {"task": "shop_app.tasks.add", "schedule": 3600.0, "args": (1, 2)}}
""",
    "site_of_shop/celery.py": """
import os
from jobq.celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_of_shop.settings")
app = Celery("site_of_shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
""",
    "site_of_shop/__init__.py": "from .celery import app as celery_app\n",
    "shop_app/__init__.py": "",
    "shop_app/models.py": """
from django.db import models

class Order(models.Model):
    name = models.CharField(max_length=9)
""",
    "shop_app/tasks.py": """
from django.db import connection
from jobq.celery import shared_task
from shop_app.models import Order

with connection.cursor() as cursor:
    cursor.execute("SELECT 1")

@shared_task
def add(x, y):
    was_open = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [x + y])
        print("sum", *cursor.fetchone(), Order.__name__, was_open, flush=True)
""",
}
PROGRAM = """
from site_of_shop.celery import app
app.send_task("shop_app.tasks.add", (2, 3), queue="web")
from jobq.cli import main
raise SystemExit(main(["worker", "--import", "site_of_shop", "--burst", "--processes", "1", "--log-level", "error"]))
"""


def test_project_with_celery_runs_when_its_imports_are_changed(server, tmp_path):
    tools.library("django")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    env = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**env, "JOBQ_URL": server.url, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    # Once for the call. The schedule's first tick is an hour away.
    assert done.stdout == "sum 5 Order False\n"
