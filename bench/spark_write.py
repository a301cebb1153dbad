"""Messages per second from a DataFrame of three columns into a queue, on two cores, the server's own included.

python -m bench.spark_write [--rows 400000] [--times 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import jobq
from bench.server import private_server
from jobq.pipeline.sessions import session

COLUMNS = ("id", "concat('/data/', id, '.jpg') as path", "id % 500 as width")
CASES = {
    "ids made": {},
    "idColumn": {"idColumn": "id"},
    "delayColumn": {"delayColumn": "width", "kwargsColumns": "id,path,width"},
}


def rates(client: jobq.Client, rows: int, times: int) -> dict[str, float]:
    """The median of each case; the first write of all, which starts Python's workers, isn't counted."""
    spark = session("bench write", master="local[2]", memory="1g")
    frame = spark.range(rows, numPartitions=2).selectExpr(*COLUMNS)

    def write(**options: str) -> float:
        began = time.perf_counter()
        (
            frame.write.format("jobq").mode("append")
            .options(url=client.url, job="app.resize", queue="low", **options).save()
        )  # fmt: skip
        return rows / (time.perf_counter() - began)

    write()
    found: dict[str, float] = {}
    for name, options in CASES.items():
        taken = []
        for _ in range(times):
            client.command("FLUSHALL", routed_by="")
            taken.append(write(**options))
        found[name] = statistics.median(taken)
    found["again, nothing new"] = statistics.median(
        write(**CASES["delayColumn"]) for _ in range(times)
    )
    spark.stop()
    return found


def main(args: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args(args)
    with private_server() as client:
        for name, rate in rates(client, given.rows, given.times).items():
            print(f"{name:20}{rate:10,.0f} messages/s")


if __name__ == "__main__":
    main()
