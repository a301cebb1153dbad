"""Demonstrate jobq: count real files in jobs, kill a worker process, and check every figure."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import ledger
import pool
import sources
import summary
from census_jobs import census

import jobq
from jobq.errors import JobqError, masked
from jobq.jobs.codec import decode

SHOWN = 8


class Demo:
    """One run of the demo, in its own namespace and folder."""

    def __init__(self, files: int | None, processes: int) -> None:
        self.client = jobq.connect(namespace=f"census-{secrets.token_hex(4)}")
        self.folder = Path(tempfile.mkdtemp(prefix="jobq-census-"))
        self.log = self.folder / "worker.log"
        self.processes = processes
        self.broken = sources.write_broken(self.folder / "broken")
        self.files = sources.chosen(files) + self.broken
        self.queue = jobq.Queue("census", self.client)
        self.kill: pool.Kill | None = None

    def run(self) -> int:
        """Run the demo, and return its exit code."""
        self._introduce()
        if not self.counted():
            return 1
        counted = summary.of_ledger(ledger.read(self.folder), self._dead())
        self._tell(counted)
        return self._compare(counted)

    def counted(self) -> bool:
        """Count each file in its own job, and wait for all jobs. If the run stalls, print why and return False."""
        with pool.worker(self.queue, "census_jobs", self.processes, self.log) as worker:
            call = census.options(client=self.client)
            call.enqueue_many((path, str(self.folder)) for path in self.files)
            total = len(self.files)
            trouble = pool.watched(worker, self.queue, total, "counting", self._kill_in_the_middle)
        if trouble:
            click.echo(pool.last_words(trouble, self.log), err=True)
        return not trouble

    def clear(self) -> None:
        """Delete all keys of the run."""
        cursor = b"0"
        while True:
            cursor, keys = self.client.command(
                "SCAN", cursor, "MATCH", f"{self.client.namespace}:*", "COUNT", 1000
            )
            for key in keys:
                self.client.command("UNLINK", key)
            if cursor == b"0":
                break

    def show(self) -> None:
        """Serve the dashboard of this run until Ctrl-C. The dashboard prints a login link for one use."""
        click.echo("\nthe dashboard shows this run; Ctrl-C ends it and deletes its files and keys")
        command = [sys.executable, "-m", "jobq", "web", "--bind", "127.0.0.1:0", "--title", "demo"]
        serving = subprocess.Popen([*command, "--namespace", self.client.namespace])
        try:
            serving.wait()
        except KeyboardInterrupt:
            click.echo()
        finally:
            serving.terminate()
            serving.wait()

    def _introduce(self) -> None:
        click.echo(f"{len(self.files):,} files, one job each, on {masked(self.client.url)}")
        click.echo(f"a worker with {self.processes} children; its log is {self.log}")
        click.echo("three of the files are this demo's own and can't be parsed or decoded:")
        for path in self.broken:
            click.echo(f"    {Path(path).name}")

    def _kill_in_the_middle(self, ended: int) -> None:
        if self.kill is None and ended > len(self.files) * 0.4:
            self.kill = pool.kill_a_busy_child(self.folder)

    def _dead(self) -> dict[str, str]:
        """Return the first line of the error for each file whose job is dead, by path."""
        reasons: dict[str, str] = {}
        while page := self.queue.admin.dead(len(reasons), 500):
            for message in page:
                reasons[decode(message.content).args[0]] = message.reason.partition("\n")[0]
        return reasons

    def _tell(self, counted: summary.Census) -> None:
        lines = summary.rows(counted)
        if self.kill is not None:
            again = pool.ran_again_after(self.kill, self.folder)
            lines[3:3] = [
                ("killed child held", pool.held(self.kill, self.log)),
                ("  its job", Path(self.kill.path).name),
                ("  ran again after", f"{again * 1000:.0f} ms" if again is not None else "never"),
            ]
        click.echo()
        for name, value in lines:
            click.echo(f"  {name:20} {value}")
        click.echo("\n  most imported")
        for module, times in counted.counts.imports.most_common(10):
            click.echo(f"    {times:8,}  {module}")
        click.echo("\n  dead, after their retries")
        ours = [path for path in self.broken if path in counted.failed]
        for path in [*ours, *sorted(set(counted.failed) - set(ours))][:SHOWN]:
            click.echo(f"    {Path(path).name}: {counted.failed[path]:.100}")
        if len(counted.failed) > SHOWN:
            click.echo(f"    and {len(counted.failed) - SHOWN} more")

    def _compare(self, counted: summary.Census) -> int:
        plain = summary.of_plain_loop(self.files)
        wrong = list(summary.differences(counted, plain))
        if self.kill is None or pool.ran_again_after(self.kill, self.folder) is None:
            wrong.append("the kill did not interrupt a job, or the job never ran again")
        for line in wrong:
            click.echo(f"WRONG: {line}", err=True)
        if not wrong:
            click.echo(
                f"\nevery figure equals that of a plain loop in one process ({plain.seconds:.1f} s)"
            )
        return 1 if wrong else 0


def attended(demo: Demo, keep: bool, web: bool = False) -> int:
    """Run the demo, then delete its keys and its folder. Keep the folder of a failed run."""
    code = 0
    try:
        code = demo.run()
        if web and not code:
            demo.show()
    finally:
        if not keep:
            # Don't hide the error of the run.
            with contextlib.suppress(JobqError):
                demo.clear()
        if keep or code:
            kept = f"{demo.folder}, namespace {demo.client.namespace}" if keep else demo.folder
            click.echo(f"kept: {kept}", err=bool(code))
        else:
            shutil.rmtree(demo.folder, ignore_errors=True)
        demo.client.close()
    return code


def leave(number: int, frame: object) -> None:
    """Handle TERM: exit so that the worker stops and the demo deletes its files and keys."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


@click.command()
@click.option(
    "--files", type=click.IntRange(10), help="Number of files, spread evenly.  [default: all]"
)
@click.option(
    "--processes", type=click.IntRange(1), default=2, show_default=True, help="Processes."
)
@click.option("--keep", is_flag=True, help="Keep the folder and the keys.")
@click.option(
    "--web", is_flag=True, help="At the end, serve the dashboard of the run until Ctrl-C."
)
def main(files: int | None, processes: int, keep: bool, web: bool) -> None:
    """Count the contents of every Python file of this interpreter, one job per file."""
    signal.signal(signal.SIGTERM, leave)
    try:
        sys.exit(attended(Demo(files, processes), keep, web))
    except JobqError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
