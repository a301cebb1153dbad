"""Enqueue a job per row from the executors of a cluster, then count the queue's events.

spark-submit --master spark://host:7077 submit.py mail 1000
"""

from __future__ import annotations

import sys

from jobq.pipeline import session


def main(queue: str, count: int) -> None:
    """Enqueue `count` reminders, then print the number of events per job and kind."""
    spark = session("submitted")
    rows = spark.range(1, count + 1, numPartitions=4)
    (
        rows.selectExpr("id as customer", "concat('cart-', id) as cart")
        .write.format("jobq")
        .mode("append")
        .option("job", "shop.remind")
        .option("queue", queue)
        .option("idColumn", "cart")
        .option("kwargsColumns", "customer,cart")
        .save()
    )
    view = spark.read.format("jobq").option("view", "queues").load()
    for row in view.where(view.queue == queue).collect():
        print(f"{row.queue}: {row.ready} ready, {row.dead} dead")
    events = spark.read.format("jobq").option("view", "events").option("queues", queue).load()
    for row in events.groupBy("job", "kind").count().orderBy("job", "kind").collect():
        print(f"{row.job} {row.kind}: {row['count']}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
