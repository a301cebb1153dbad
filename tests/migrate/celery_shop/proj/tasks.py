from celery import shared_task
from celery.signals import worker_ready

from .celery_app import app


@worker_ready.connect
def warm(**kwargs):
    pass


@app.task(bind=True, autoretry_for=(IOError,), retry_backoff=True, rate_limit="10/m")
def fetch(self, url):
    return self.replace(parse.s(url))


@shared_task(acks_late=True, priority=5, serializer="pickle")
def parse(url):
    pass


@app.task(time_limit=30)
async def bill(day):
    pass
