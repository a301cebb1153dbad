from redis import Redis
from rq import Queue, Retry, Worker, get_current_job
from rq.job import Job

low = Queue("low", connection=Redis(), is_async=False)


class Own(Worker):
    pass


def resize(path):
    job = get_current_job()
    job.meta["done"] = 1
    job.save_meta()


def start(path):
    job = low.enqueue(resize, path, job_id="a", at_front=True)
    low.enqueue(resize, {1, 2}, retry=Retry(max=3), depends_on=job)
    return job.get_status(), Job.fetch("a", connection=Redis())
