"""`examples/hello`."""

from __future__ import annotations


def test_hello_prints_what_the_worker_returned(run):
    asking = run("examples/hello/hello.py")
    run("-m", "jobq", "worker", "--import", "examples.hello.hello", "--processes", "1")
    said, _ = asking.communicate(timeout=300)
    assert (asking.returncode, said) == (0, "Hello, world!\n")
