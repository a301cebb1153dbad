import dramatiq
from dramatiq import group
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import Middleware

dramatiq.set_broker(RabbitmqBroker())


class Log(Middleware):
    pass


@dramatiq.actor(max_retries=3, min_backoff=1000, time_limit=60_000)
def fetch(url):
    pass


@dramatiq.actor(priority=10)
def count(url):
    pass


def main():
    fetch.send("a")
    count.send_with_options(args=("a",), delay=5000)
    group([fetch.message("a")]).run()
