from celery import Celery
from celery.schedules import crontab
from kombu import Queue

app = Celery("proj", broker="redis://localhost:6379/0", backend="redis://localhost:6379/1")
app.conf.task_queues = (Queue("default"), Queue("mails"))
app.conf.update(
    task_serializer="json",
    accept_content=["json", "pickle"],
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 43200},
    task_annotations={"*": {"rate_limit": "10/s"}},
)
app.conf.beat_schedule = {
    "monthly": {"task": "proj.tasks.bill", "schedule": crontab(day_of_month=1, day_of_week="mon")},
}
app.autodiscover_tasks()
