"""Tasks of each kind."""

import asyncio
import functools
import os
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from jobq.django import task_options
from orders.compat import TaskContext, task
from orders.models import Order

if os.environ.get("OPEN_AT_IMPORT"):
    Order.objects.count()


@task
def nothing(*args, **kwargs):
    pass


@task()
async def nothing_async(*args, **kwargs):
    await asyncio.sleep(0)


def timed(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@task
@timed
async def twice_async(one):
    await asyncio.sleep(0)
    return 2 * one


@task
def returns_coroutine():
    return asyncio.sleep(0)


@task
def product(one, other=1):
    return one * other


@task
def fails():
    raise ValueError("This task failed due to ValueError")


@task
def exits():
    raise SystemExit("This task failed due to SystemExit")


@task
async def fails_async():
    raise LookupError("not there")


@task
def nested_error():
    raise ValueError(ValueError("This task failed"))


@task
def returns_object():
    return object()


@task(takes_context=True)
def own_id(context):
    return context.task_result.id


@task(takes_context=True)
def expects_attempt(context, attempt):
    assert isinstance(context, TaskContext)
    assert context.attempt == attempt
    return context.task_result.worker_ids


@task
@task_options(retries=2, retry=lambda failures, error: 0.01)
def fails_twice(path):
    with Path(path).open("a") as lines:
        lines.write("tried\n")
    if len(Path(path).read_text().splitlines()) < 3:
        raise ConnectionError("not yet")
    return "third"


@task(queue_name="mails")
def order_name(pk):
    return Order.objects.get(pk=pk).name


@task
async def rename_order(pk, name):
    """Read and write by both kinds of async calls."""
    order = await Order.objects.aget(pk=pk)
    order.name = name
    await sync_to_async(order.save)()
    return await Order.objects.acount()


@task
def add_order(name):
    return Order.objects.create(name=name).pk


@task
def add_named(name):
    """Add an order in a transaction; a killed process leaves none."""
    with transaction.atomic():
        Order.objects.create(name=name)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            [backend] = cursor.fetchone()
        time.sleep(0.02)
    return [os.getpid(), backend]


@task(takes_context=True)
@task_options(retries=1)
def waits(context, folder):
    """Write who runs it; wait until the test says go."""
    (Path(folder) / f"started-{context.attempt}").write_text(str(os.getpid()))
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return context.attempt


@task
def connection_was_open():
    """Whether this process had a connection to the database before; it has one now, and keeps it."""
    was_open = connection.connection is not None
    Order.objects.count()
    return was_open


@task
@task_options(unique=True)
def only_one(name):
    pass
