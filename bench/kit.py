"""`python -m bench.kit`: cost of a test on the kit, in milliseconds of time and of CPU."""

from __future__ import annotations

import resource
import statistics
import time

from jobq.jobs.registry import Registry, job
from jobq.testing import kit
from jobq.testing.plain import shared_server

TESTS = 500


def main() -> None:
    """Run this many small tests: an empty server, an enqueue, an assertion, a drain."""
    registry = Registry()
    note = job(name="note", queue="mails", registry=registry)(lambda to: None)
    began = time.perf_counter()
    _ = shared_server.url
    print(f"start of the server  {1000 * (time.perf_counter() - began):6.1f} ms")
    times, cpu = [], _cpu_s()
    for number in range(TESTS):
        began = time.perf_counter()
        with kit(registry=registry) as jobq:
            note.enqueue(f"{number}@b.example")
            jobq.assert_enqueued(note, args=(f"{number}@b.example",), queue="mails", count=1)
            assert jobq.drain().done == 1
        times.append(time.perf_counter() - began)
    print(f"test, median         {1000 * statistics.median(times):6.2f} ms")
    print(f"test, 99 of 100      {1000 * statistics.quantiles(times, n=100)[98]:6.2f} ms")
    print(f"test, CPU            {1000 * (_cpu_s() - cpu) / TESTS:6.2f} ms")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
