"""One tree of errors: what fails derives from JobqError and ends in Error; control flow does neither."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path

import pytest

import jobq
from bench import sources
from jobq import errors
from jobq.errors import MAX_SHOWN, masked_text, shortened

#: Raised to end an attempt. The last two pass `except Exception` in a job.
CONTROL_FLOW = {"Outcome", "Retry", "Dead", "Snooze", "HoldKey", "JobTimeout", "JobAborted"}
#: By the names that they have in Celery.
OF_CELERY = {"Ignore", "Reject", "CeleryRetry", "WorkerLostError", "MaxRetriesExceededError"}
BUILTIN = {
    name for name, each in vars(builtins).items()
    if inspect.isclass(each) and issubclass(each, BaseException)
}  # fmt: skip
ROOT = Path(jobq.__file__).parent


def bases() -> dict[str, set[str]]:
    """Names of classes in the product with those of their bases; from the text, so pyspark isn't imported."""
    found: dict[str, set[str]] = {}
    for file in ROOT.rglob("*.py"):
        for node in sources.nodes(file, ast.ClassDef):
            if not node.name.startswith("_"):
                names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                found[node.name] = found.get(node.name, set()) | names
    return found


def ancestors(name: str, known: dict[str, set[str]]) -> set[str]:
    above = known.get(name, set())
    known = {
        each: found for each, found in known.items() if each != name
    }  # one may extend its namesake
    return above.union(*(ancestors(each, known) for each in above))


def test_what_fails_derives_from_jobq_error_and_ends_in_error():
    known = bases()
    raised = {name for name in known if ancestors(name, known) & BUILTIN} - {"JobqError"}
    assert raised >= CONTROL_FLOW | OF_CELERY
    for name in raised - OF_CELERY:
        assert ("JobqError" in ancestors(name, known)) == (name not in CONTROL_FLOW), name
        assert name.endswith("Error") == (name not in CONTROL_FLOW), name


def test_control_flow_is_no_error_of_jobq():
    for each in (errors.Retry, errors.Dead, errors.Snooze):
        assert issubclass(each, errors.Outcome)
    for each in (errors.JobTimeout, errors.JobAborted):
        assert not issubclass(each, Exception)


def test_the_tree_in_the_docstring_is_the_tree():
    shown = re.findall(r"^[ │├└─]*([A-Z]\w+)(?: {3,}.*)?$", errors.__doc__ or "", re.MULTILINE)
    classes = [name for name, _ in inspect.getmembers(errors, inspect.isclass)]
    own = [name for name in classes if getattr(errors, name).__module__ == "jobq.errors"]
    assert sorted(shown) == sorted(own)


@pytest.mark.parametrize("name", ["JobqError", "Retry", "Dead", "Snooze", "Message", "Ending"])
def test_root_has_the_names_that_a_job_needs(name):
    assert name in jobq.__all__
    assert inspect.isclass(getattr(jobq, name))


def test_root_has_no_error_but_the_base():
    raised = {name for name in jobq.__all__ if isinstance(getattr(jobq, name), type)}
    raised = {name for name in raised if issubclass(getattr(jobq, name), BaseException)}
    assert raised == CONTROL_FLOW | {"JobqError"}


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("before", range(0, 40, 3))
def test_shortened_text_shows_no_half_of_a_url(end, before):
    url = "redis://anna:open-sesame@host/?password=open-sesame"
    filler = "y " * (MAX_SHOWN // 2)
    text = f"{url} {filler}"[: -before or None] if end else f"{filler[before:]} {url}"
    cut = masked_text(shortened(f"{text} {filler}" if not end else f"{filler}{text}", end=end))
    assert "sesame" not in cut
    assert len(cut) <= MAX_SHOWN + 2


def test_text_is_left_as_it_is_when_it_is_short():
    assert shortened("redis://u:p@h") == "redis://u:p@h"


def test_masking_costs_no_square_of_a_long_word():
    assert masked_text("x" * 300_000 + "://u:secret@h") == "x" * 300_000 + "://***@h"
