"""Demonstrate jobq with Spark: job history in a lake, DataFrame rows as jobs, and checked figures."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pool
from demo import Demo, attended, leave
from line_jobs import measured
from telling import Figures, Steps

import jobq
from jobq.errors import ConfigError, JobqError, PipelineError, masked
from jobq.pipeline import doctor

if TYPE_CHECKING:
    from history import History
    from pyspark.sql import DataFrame

FILES, ROWS = 4_000, 100_000
PAGE = "jobq-demo.html"
#: Upper limit of events per job here: enqueue, end, retries and the kill.
EVENTS = 10


class Pipeline(Demo):
    """Run the census with all events recorded, then a job per DataFrame row."""

    def __init__(self, files: int, rows: int, processes: int, page: Path) -> None:
        super().__init__(files, processes)
        self.page, self.nrows = page, rows
        self.lines = jobq.Queue("lines", self.client)
        self.steps, self.figures = Steps(), Figures()

    def run(self) -> int:
        """Run the pipeline, and return its exit code."""
        click.echo(f"on {masked(self.client.url)}; lake and logs are in {self.folder}")
        # Spark's JVM reads the environment only at its start.
        os.environ.update(JOBQ_URL=self.client.url, JOBQ_NAMESPACE=self.client.namespace)
        self.steps.begin("Spark starts")
        from history import History

        with History(self.client, self.folder / "lake") as history:
            self.steps.say(history.versions)
            done = self._done(history)
        if not done:
            return 1
        if not self.figures.told():
            click.echo("\nWRONG: some figures differ from their required values", err=True)
            return 1
        click.echo(f"\nevery figure is what it must be\nthe report: {self.page.resolve()}")
        return 0

    def _done(self, history: History) -> bool:
        """Run all steps. Return False if a worker stalls."""
        for queue in (self.queue, self.lines):
            queue.admin.events_level("all")
            queue.admin.events_maxlen(max(100_000, EVENTS * (len(self.files) + self.nrows)))
        if not self._census():
            return False
        self._ingest(history)
        if not self._rows(history):
            return False
        self._ingest(history)
        self._look_into(history)
        self._report(history)
        return True

    def _census(self) -> bool:
        total = len(self.files)
        self.steps.begin(
            f"{total:,} Python files, one job each, by a worker with {self.processes} children"
        )
        if not self.counted():
            return False
        dead = self.queue.admin.counts().dead
        killed = "; one child was killed in the middle" if self.kill else ""
        self.steps.say(f"{total - dead:,} done, {dead:,} dead{killed}", total, "jobs")
        return True

    def _ingest(self, history: History) -> None:
        self.steps.begin("jobq lake ingest --once")
        ingested = history.ingest()
        self.steps.say(
            f"{ingested.events:,} events, {ingested.dead:,} dead letters", ingested.events, "events"
        )

    def _rows(self, history: History) -> bool:
        """Enqueue a job per row, run the jobs, and repeat the write. Return False if the worker stalls."""
        from history import characters, enqueued

        self.steps.begin("lines of those files as a DataFrame")
        texts = list(itertools.islice(lines_of(self.files), self.nrows))
        frame, self.nrows = history.frame(texts, self.folder), len(texts)
        total = characters(frame)
        self.steps.say(f"{self.nrows:,} rows with {total:,} characters")
        self.steps.begin('df.write.format("jobq"), a job for each row')
        enqueued(frame, self.lines.name)
        self.steps.say(f"{self.nrows:,} rows enqueued", self.nrows, "rows")
        self.figures.add("rows enqueued", self.lines.admin.counts().messages, self.nrows)
        if not self._drained():
            return False
        self._written_again(frame)
        ran = measured(self.folder)
        self.figures.add("rows whose job ran, as jobs wrote down", ran.lines, self.nrows)
        self.figures.add("runs beyond the first", ran.again, 0)
        self.figures.add("characters, by jobs and by Spark", ran.characters, total)
        return True

    def _drained(self) -> bool:
        log = self.folder / "lines.log"
        self.steps.begin(f"jobq worker --queues lines --processes {self.processes}")
        with pool.worker(self.lines, "line_jobs", self.processes, log) as worker:
            trouble = pool.watched(worker, self.lines, self.nrows, "measuring")
        if trouble:
            click.echo(pool.last_words(trouble, log), err=True)
            return False
        self.steps.say(f"{self.nrows:,} jobs ended", self.nrows, "jobs")
        return True

    def _written_again(self, frame: DataFrame) -> None:
        from history import enqueued

        self.steps.begin("the same write again")
        enqueued(frame, self.lines.name)
        counts = self.lines.admin.counts()
        added = counts.ready + counts.delayed + counts.locked + counts.requeued
        self.steps.say(f"{added:,} rows enqueued", self.nrows, "rows")
        self.figures.add("rows enqueued by the second write", added, 0)

    def _look_into(self, history: History) -> None:
        from history import written

        self.steps.begin("jobq lake stats")
        tables = {stats.table: stats for stats in history.stats()}
        for table in tables.values():
            click.echo(
                f"    {table.table}: {table.rows:,} rows, {table.bytes_per_row:g} bytes each"
            )
        self.steps.begin("jobq lake check")
        findings = history.check()
        for finding in findings:
            click.echo(f"    {finding.level}  {finding.table}: {finding.text}")
        events, dead = tables["events"], self.queue.admin.counts().dead
        self.figures.add("events in the lake, and written by the server",
                         events.rows, written((self.queue, self.lines)))  # fmt: skip
        self.figures.add("events dropped before they were read", sum(events.lost.values()), 0)
        self.figures.add("dead letters in the lake, and on the server", tables["dead"].rows, dead)
        self.figures.add(
            "faults that check found", sum(finding.level == "fail" for finding in findings), 0
        )
        self._audit(history)

    def _audit(self, history: History) -> None:
        self.steps.begin("jobq lake audit")
        audited = history.audit()
        for queue, total in ((self.queue.name, len(self.files)), (self.lines.name, self.nrows)):
            audit = audited[queue]
            self.steps.say(
                f"{queue}: {audit.accepted:,} accepted, {audit.finished:,} finished, "
                f"{audit.duplicates:,} run again, {audit.lost + audit.open:,} lost"
            )
            self.figures.add(f"{queue}: accepted, by the lake", audit.accepted, total)
            self.figures.add(f"{queue}: finished, by the lake", audit.finished, total)
        self.figures.add("lines: run again, by the lake", audited[self.lines.name].duplicates, 0)

    def _report(self, history: History) -> None:
        from history import written

        self.steps.begin("jobq report all --html")
        report = history.report(self.page)
        self.steps.say(f"{report.answers} answers from {report.events:,} events")
        self.figures.add("events in the report", report.events, written((self.queue, self.lines)))


def lines_of(files: Iterable[str]) -> Iterator[str]:
    """Yield all source lines that aren't blank."""
    for file in files:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
        yield from (line for line in text.splitlines() if line.strip())


def judged(page: Path) -> None:
    """Raise an error if Spark can't run here or the page can't be written."""
    looks = (doctor.packages, doctor.python, doctor.java, doctor.home)
    faults = [finding for look in looks for finding in look() if finding.level == "fail"]
    if faults:
        remedies = dict.fromkeys(fault.remedy for fault in faults if fault.remedy)
        told = "; ".join([", ".join(fault.value for fault in faults), *remedies])
        raise PipelineError(f"the pipeline can't run here: {told}")
    folder = page.resolve().parent
    if page.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--page {page} can't be written; name a file in a folder that can")


@click.command()
@click.option("--files", type=click.IntRange(10), default=FILES, help="Number of files.")
@click.option("--rows", type=click.IntRange(1), default=ROWS, help="Number of DataFrame rows.")
@click.option("--processes", type=click.IntRange(1), default=2, help="Processes per worker.")
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, help="File of the report.")
@click.option("--keep", is_flag=True, help="Keep the folder and the keys.")
def main(files: int, rows: int, processes: int, page: Path, keep: bool) -> None:
    """Write job history to a lake, report on it, and run DataFrame rows as jobs."""
    signal.signal(signal.SIGTERM, leave)
    try:
        judged(page)
        sys.exit(attended(Pipeline(files, rows, processes, page), keep))
    except JobqError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
