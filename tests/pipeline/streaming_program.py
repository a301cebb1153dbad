"""A user's streaming queries, run as a program that gets killed: events into Parquet files, and their rows into jobs.

Arguments: the server's URL, a folder, and `on` (run until killed) or `end` (read what there is, and count).
"""

from __future__ import annotations

import json
import os
import sys

from jobq.pipeline import session


def main(url: str, folder: str, until: str) -> None:
    spark = session(
        "killed", master="local[2]", memory="512m", fast=True,
        conf={"spark.local.dir": f"{folder}/local", "spark.sql.shuffle.partitions": "2"},
    )  # fmt: skip
    os.makedirs(f"{folder}/out", exist_ok=True)
    rows = "100000" if until == "end" else "700"
    options = {
        "url": url,
        "maxRowsPerTrigger": rows,
        "trimOnCommit": "true",
        "queues": "low,high,later",
    }
    events = spark.readStream.format("jobq").options(**options).load().select("queue", "mid")
    to_files = events.writeStream.format("parquet").option("path", f"{folder}/out")
    stored = spark.readStream.schema("queue string, mid string").parquet(f"{folder}/out")
    copied = {"url": url, "job": "app.copy", "queue": "copied", "idColumn": "id", "batch": "100"}
    to_jobs = (
        stored.selectExpr("concat(queue, '/', mid) AS id", "queue")
        .writeStream.format("jobq").options(**copied)
    )  # fmt: skip
    queries = []
    for name, writing in (("checkpoint", to_files), ("copied", to_jobs)):
        trigger = {"availableNow": True} if until == "end" else {"processingTime": "0 seconds"}
        query = writing.option("checkpointLocation", f"{folder}/{name}").trigger(**trigger).start()
        if until == "end":
            query.awaitTermination()
        queries.append(query)
    for query in queries:
        query.awaitTermination()
    found = spark.read.parquet(f"{folder}/out")
    print(json.dumps([found.count(), found.distinct().count()]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
