"""`python -m bench.spark_read`: how fast `format("jobq")` reads events, on two cores with the server beside it.

A made-up week (`bench/history.py`) is read whole again and again, its rows converted to Spark's and thrown away.
"""

from __future__ import annotations

import argparse
import statistics
import time

from bench.history import events, fill
from bench.server import private_server
from jobq.pipeline import session

MESSAGES = 500_000
WARM, ROUNDS = 3, 7
READS = {
    "all columns": {},
    "five columns": {"columns": "queue,kind,job,run_us,finished_at"},
}


def rates(df: object, rows: int) -> list[float]:
    """Rows per second of each round, the first ones left out: the JVM learns."""
    found = []
    for _ in range(WARM + ROUNDS):
        start = time.perf_counter()
        df.write.format("noop").mode("overwrite").save()  # type: ignore[attr-defined]
        found.append(rows / (time.perf_counter() - start))
    return found[WARM:]


def main() -> None:
    """Fill a server, and read it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    given = parser.parse_args()
    with private_server() as client:
        rows = fill(client, events(given.messages))
        spark = session("bench", master="local[2]", memory="2g")
        for name, options in READS.items():
            df = spark.read.format("jobq").options(url=client.url, **options).load()
            found = rates(df, rows)
            print(
                f"{name}: {statistics.median(found):,.0f} rows/s, the median of {ROUNDS} reads of {rows:,} events "
                f"in {df.rdd.getNumPartitions()} partitions ({min(found):,.0f} to {max(found):,.0f})"
            )
        spark.stop()


if __name__ == "__main__":
    main()
