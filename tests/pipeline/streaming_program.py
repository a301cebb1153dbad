"""A user's streaming query, run as a program that gets killed: events into Parquet files.

Arguments: the server's URL, a folder, and `on` (run until killed) or `end` (read what there is, and count).
"""

from __future__ import annotations

import json
import sys

from jobq.pipeline import session


def main(url: str, folder: str, until: str) -> None:
    spark = session(
        "killed", master="local[2]", memory="512m", fast=True,
        conf={"spark.local.dir": f"{folder}/local", "spark.sql.shuffle.partitions": "2"},
    )  # fmt: skip
    rows = "100000" if until == "end" else "700"
    options = {"url": url, "maxRowsPerTrigger": rows, "trimOnCommit": "true"}
    events = spark.readStream.format("jobq").options(**options).load().select("queue", "mid")
    writing = events.writeStream.format("parquet").option(
        "checkpointLocation", f"{folder}/checkpoint"
    )
    trigger = {"availableNow": True} if until == "end" else {"processingTime": "0 seconds"}
    writing.trigger(**trigger).start(f"{folder}/out").awaitTermination()
    found = spark.read.parquet(f"{folder}/out")
    print(json.dumps([found.count(), found.distinct().count()]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
