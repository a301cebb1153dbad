"""Eight tasks of a shop, as a team writes them for Celery; only the imports are others."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from time import sleep

from jobq.celery import Celery, Task, chain, chord, group, shared_task
from jobq.celery.exceptions import SoftTimeLimitExceeded
from jobq.celery.schedules import crontab
from jobq.celery.signals import task_failure, task_prerun, worker_process_init
from jobq.celery.utils.log import get_task_logger

logger = get_task_logger(__name__)
app = Celery("shop", backend="redis")
app.conf.update(
    task_routes={"tests.celery.shop_tasks.make_*": {"queue": "images"}},
    result_expires=3600,
    timezone="Europe/Berlin",
)
app.conf.beat_schedule = {
    "report-every-morning": {"task": f"{__name__}.report", "schedule": crontab(hour=7, minute=30)},
    "clean-up": {"task": f"{__name__}.clean_up", "schedule": timedelta(minutes=5), "args": (30,)},
}


def note(*words: object) -> None:
    """Write a line that tests read."""
    if "SHOP" not in os.environ:  # receivers hear of the tasks of other tests, too
        return
    with (Path(os.environ["SHOP"]) / "notes").open("a") as notes:
        notes.write(" ".join(map(str, words)) + "\n")


@worker_process_init.connect
def connect(**_: object) -> None:
    note("connected")


@task_prerun.connect
def started(task_id, task, **_):
    note("prerun", task.name.rpartition(".")[2])


@task_failure.connect
def failed(sender, exception, **_):
    note("failure", sender.name.rpartition(".")[2], repr(exception))


class Audited(Task):
    """A base class with what teams put there."""

    abstract = True

    def on_success(self, retval, task_id, args, kwargs):
        note("on_success", self.name.rpartition(".")[2], retval)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note("on_failure", self.name.rpartition(".")[2], type(exc).__name__, list(args))

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        note("on_retry", self.name.rpartition(".")[2], repr(exc))


@app.task
def price(item):
    return {"pen": 3, "ink": 7}[item]


@app.task(base=Audited)
def total(prices, currency="EUR"):
    return f"{sum(prices)} {currency}"


@shared_task(bind=True, max_retries=3, default_retry_delay=0)
def send_mail(self, to, fails=0):
    if self.request.retries < fails:
        try:
            raise ConnectionError(f"try {self.request.retries}")
        except ConnectionError as error:
            raise self.retry(exc=error) from error
    note("mail", to, self.request.retries, self.request.called_directly)
    return to


@app.task(
    base=Audited, autoretry_for=(OSError,), retry_kwargs={"max_retries": 2}, retry_backoff=True, retry_backoff_max=0
)  # fmt: skip
def fetch(url):
    note("fetch", url)
    raise OSError(url)


@app.task(soft_time_limit=3, time_limit=60)
def make_thumbnail(name):
    try:
        while name == "huge":
            sleep(0.01)
    except SoftTimeLimitExceeded:
        return "too large"
    return f"{name}.png"


@app.task(bind=True)
def report(self, steps=0):
    self.update_state(state="PROGRESS", meta={"current": 1, "total": 4})
    while steps and not (Path(os.environ["SHOP"]) / "go").exists():
        pass
    return chord([price.s("pen"), price.s("ink")])(total.s()).id


@app.task(ignore_result=True, rate_limit="100/s")
def clean_up(days=30):
    note("clean_up", days)


@app.task
def alert(request, exc, traceback):
    note("alert", type(exc).__name__, request.id is not None)


def order():
    """What a program starts: a chain with a group in it."""
    return chain(price.s("pen"), group(double.s(), double.si(5)), total.s(currency="USD"))


@app.task
def double(value):
    return 2 * value
