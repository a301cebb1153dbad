"""How long `jobq report all --html` takes over so many events, on two cores, from a folder of Parquet.

python -m bench.spark_report [--rows 5000000] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.spark_report_history import made, until
from jobq.pipeline.report.asked import Asked
from jobq.pipeline.report.html import page
from jobq.pipeline.report.registry import REPORTS
from jobq.pipeline.report.run import Result, run
from jobq.pipeline.report.views import Read, registered
from jobq.pipeline.sessions import session

SINCE = datetime(2026, 11, 9, tzinfo=UTC)


def measured(folder: Path, rows: int) -> str:
    """The page, after printing how long each part took."""
    spark = session("bench report", master="local[2]", memory="1g")
    place = str(folder / f"events-{rows}")
    if not Path(place).exists():
        made(spark, rows, SINCE).write.option("compression", "zstd").parquet(place)
    asked = Asked(since=SINCE, until=until(SINCE))
    began = time.perf_counter()
    results: list[Result] = []
    with registered(spark, Read(lambda since, until: spark.read.parquet(place)), asked) as seen:
        print(f"looked over {time.perf_counter() - began:6.1f} s  {seen.events:,} events")
        for report in REPORTS:
            at = time.perf_counter()
            results.append(run(spark, report, asked))
            print(
                f"{report.name:12}{time.perf_counter() - at:6.1f} s  {len(results[-1].rows):,} rows",
                flush=True,
            )
    said = page(results, asked, seen)
    print(f"all         {time.perf_counter() - began:6.1f} s  {len(said):,} bytes of HTML")
    return said


def main(args: Sequence[str] | None = None) -> None:
    """Measure, and write the page beside what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args(args)
    with TemporaryDirectory() as made_here:
        folder = given.keep or Path(made_here)
        (folder / "report.html").write_text(measured(folder, given.rows), encoding="utf-8")


if __name__ == "__main__":
    main()
