"""The census as a demonstration: real work, a killed child, bad input, and figures that are checked."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
import ledger
import pool
import sources
import summary
from census_jobs import census

import jobq
from jobq.jobs.codec import decode

STUCK_S = 30.0


class Demo:
    """One run in a namespace and a folder of its own."""

    def __init__(self, files: int | None, processes: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jobq-census-"))
        self.log = self.folder / "worker.log"
        self.processes = processes
        self.broken = sources.write_broken(self.folder / "broken")
        self.files = sources.chosen(files) + self.broken
        self.client = jobq.connect(namespace=f"census-{secrets.token_hex(4)}")
        self.queue = jobq.Queue("census", self.client)
        self.kill: pool.Kill | None = None

    def run(self) -> int:
        """The exit code."""
        self._introduce()
        with pool.worker(
            self.client.url, self.client.namespace, self.processes, self.log
        ) as worker:
            call = census.options(client=self.client)
            call.enqueue_many((path, str(self.folder)) for path in self.files)
            if not self._watch(worker):
                tail = self.log.read_text(errors="replace")[-2000:]
                click.echo(
                    f"\nno progress for {STUCK_S:g} s, or the worker left; its log ends:\n{tail}",
                    err=True,
                )
                return 1
        found = summary.of_ledger(ledger.read(self.folder), self._dead())
        self._tell(found)
        return self._compare(found)

    def clean(self) -> None:
        """Leave nothing on the server or the disk."""
        cursor = b"0"
        while True:
            cursor, keys = self.client.command(
                "SCAN", cursor, "MATCH", f"{self.client.namespace}:*", "COUNT", 1000
            )
            for key in keys:
                self.client.command("UNLINK", key)
            if cursor == b"0":
                break
        self.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _introduce(self) -> None:
        click.echo(f"{len(self.files):,} files, one job each, on {self.client.url}")
        click.echo(f"a worker with {self.processes} children; its log is {self.log}")
        click.echo("three of the files are this demo's own and can't be parsed or decoded:")
        for path in self.broken:
            click.echo(f"    {Path(path).name}")

    def _watch(self, worker: pool.subprocess.Popen[bytes]) -> bool:
        """Show progress, kill a child in the middle; False when nothing moves any more."""
        total, seen, moved_at = len(self.files), 0, time.monotonic()
        with click.progressbar(length=total, label="counting", file=sys.stderr) as bar:
            while seen < total:
                counts = self.queue.counts()
                ended = total - (counts.messages - counts.done)
                if ended > seen:
                    bar.update(ended - seen)
                    seen, moved_at = ended, time.monotonic()
                elif time.monotonic() - moved_at > STUCK_S or worker.poll() is not None:
                    return False
                if self.kill is None and seen > total * 0.4:
                    self.kill = pool.kill_a_busy_child(self.folder)
                time.sleep(0.02)
        return True

    def _dead(self) -> dict[str, str]:
        """Path -> first line of the reason."""
        found: dict[str, str] = {}
        while page := self.queue.dead(len(found), 500):
            for one in page:
                found[decode(one.content).args[0]] = one.reason.partition("\n")[0]
        return found

    def _tell(self, found: summary.Census) -> None:
        lines = summary.rows(found)
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
        for module, times in found.counts.imports.most_common(10):
            click.echo(f"    {times:8,}  {module}")
        click.echo("\n  dead, after their retries")
        ours = [path for path in self.broken if path in found.failed]
        for path in [*ours, *sorted(set(found.failed) - set(ours))][:8]:
            click.echo(f"    {Path(path).name}: {found.failed[path]:.100}")

    def _compare(self, found: summary.Census) -> int:
        plain = summary.of_plain_loop(self.files)
        wrong = list(summary.differences(found, plain))
        if self.kill is None or pool.ran_again_after(self.kill, self.folder) is None:
            wrong.append("no child was killed in the middle of a job, or its job never ran again")
        for line in wrong:
            click.echo(f"WRONG: {line}", err=True)
        if not wrong:
            click.echo(
                f"\nevery figure equals that of a plain loop in one process ({plain.seconds:.1f} s)"
            )
        return 1 if wrong else 0


@click.command()
@click.option(
    "--files", type=click.IntRange(10), help="So many files, spread evenly.  [default: all]"
)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="Children.")
@click.option("--keep", is_flag=True, help="Leave the folder and the keys for a look.")
def main(files: int | None, processes: int, keep: bool) -> None:
    """Count what is in every Python file of this interpreter, one job each."""
    demo = Demo(files, processes)
    try:
        code = demo.run()
    finally:
        if keep:
            click.echo(f"kept: {demo.folder}, namespace {demo.client.namespace}")
        else:
            demo.clean()
    sys.exit(code)


if __name__ == "__main__":
    main()
