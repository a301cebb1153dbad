"""Names of other queues: each is missing in jobq, and its error says what to write."""

from __future__ import annotations

import copy
import re
import sys
from uuid import uuid4

import click
import pytest
from click.testing import CliRunner

import jobq
from jobq import habits
from jobq.cli.app import app
from jobq.errors import CodecError, ConfigError
from jobq.jobs.options import checked_options

TABLE = habits._table()
OBJECTS = {
    "Job": jobq.Job,
    "Receipt": jobq.Receipt,
    "State": jobq.State,
    "Queue": jobq.Queue,
    "Flow": jobq.Flow,
}
COMMAND = re.compile(r"['`]jobq ([a-z][^'`]*)['`]")


@jobq.job
def greet(name: str) -> str:
    return name


def names_of(section: str) -> list[str]:
    return [name for place, name in TABLE if place == section]


def test_sections_are_those_that_are_read():
    assert {section for section, _ in TABLE} == {
        *OBJECTS, "jobq", "options", "schedule", "commands", "options of worker", "options of app", "arguments",
    }  # fmt: skip


@pytest.mark.parametrize("section", OBJECTS)
def test_names_are_missing_when_they_have_a_remedy(section):
    assert names_of(section)
    assert [name for name in names_of(section) if hasattr(OBJECTS[section], name)] == []


def test_names_of_the_module_are_missing_when_they_have_a_remedy():
    imported = {
        name.removeprefix("jobq.") for name in sys.modules
    }  # another test may have imported jobq.pipeline
    assert [name for name in names_of("jobq") if name in dir(jobq) and name not in imported] == []


def test_options_are_missing_when_they_have_a_remedy():
    for name in names_of("options"):
        with pytest.raises(ConfigError, match="there is no option") as raised:
            checked_options({name: 1}, declaring=True)
        assert "options are" not in str(raised.value)


def test_options_of_schedules_are_missing_when_they_have_a_remedy():
    for name in names_of("schedule"):
        with pytest.raises(ConfigError, match=f"a schedule has no option '{name}'; (write|pass) "):
            jobq.schedule("* * * * *", **{name: 1})  # type: ignore[arg-type]


def test_commands_are_missing_when_they_have_a_remedy():
    for name in names_of("commands"):
        done = CliRunner().invoke(app, [name])
        assert (done.exit_code, f"No such command '{name}'. " in done.output) == (2, True), name


def test_remedies_name_commands_that_exist():
    named = {command for text in TABLE.values() for command in COMMAND.findall(text)}
    assert len(named) > 10
    for command in named:
        group: click.Command | None = app
        for word in command.split():
            if word.isupper() or word.startswith("-") or not isinstance(group, click.Group):
                break
            group = group.get_command(click.Context(group), word)
            assert group is not None, command


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("delay", "'SyncJob' object has no attribute 'delay'; call greet.enqueue(…)"),
        ("s", "'SyncJob' object has no attribute 's'; flow.step(greet, …) makes a step of a flow"),
        ("nothing_known", "'SyncJob' object has no attribute 'nothing_known'"),
    ],
)
def test_attribute_of_a_job_is_refused_with_its_remedy(name, text):
    with pytest.raises(AttributeError) as raised:
        getattr(greet, name)
    assert str(raised.value).startswith(text)


def test_missing_attribute_keeps_the_guess_of_python_when_no_remedy_is_known():
    with pytest.raises(AttributeError) as raised:
        _ = greet.enqueu  # type: ignore[attr-defined]
    assert (raised.value.name, raised.value.obj) == ("enqueu", greet)


def test_attributes_of_other_objects_are_refused_with_their_remedies():
    state = jobq.State("failed")
    with pytest.raises(
        AttributeError, match=r"'State' object has no attribute 'status'; \.word is queued"
    ):
        _ = state.status  # type: ignore[attr-defined]
    with pytest.raises(
        AttributeError, match=r"'Flow' object has no attribute 'run'; call flow\.start\(\)"
    ):
        _ = jobq.Flow("x").run  # type: ignore[attr-defined]
    with pytest.raises(
        AttributeError, match=r"'jobq' has no attribute 'get_current_job'; call jobq\.current\(\)"
    ):
        _ = jobq.get_current_job  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"import JobFailedError from jobq\.errors"):
        _ = jobq.JobFailedError  # type: ignore[attr-defined]


def test_job_is_copied_when_it_refuses_unknown_attributes():
    assert copy.copy(greet).name == copy.copy(greet.options(delay=1)).name == greet.name
    assert not hasattr(greet, "delay")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"delay": 3}, "options go into greet.options(…).enqueue(…): delay=…"),
        (
            {"countdown": 3, "queue": "low"},
            "greet.options(…).enqueue(…): write delay= or at=, queue=…",
        ),
        ({"other": 3}, "unexpected keyword argument 'other'"),
    ],
)
def test_option_among_the_arguments_is_refused_with_its_place(given, text):
    with pytest.raises(TypeError) as raised:
        greet.args("a", **given)
    assert str(raised.value).endswith(text)


def test_misspelt_option_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"did you mean retries=\? options are at, "):
        greet.options(retrys=1)  # type: ignore[call-arg]


def test_queue_as_the_argument_of_job_is_refused_with_its_option():
    with pytest.raises(ConfigError, match=r"a queue is @job\(queue='low'\)"):
        jobq.job("low")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "-A shop worker",
            "No such option '-A'. Name the modules with jobs: 'jobq worker --import MODULE'.",
        ),
        ("worker -A shop", "No such option '-A'. Name the modules with jobs: --import MODULE."),
        ("worker -Q low", "No such option '-Q'. Name the queues: --queues NAME,NAME."),
        (
            "worker high low",
            "Name modules with --import MODULE, and queues with --queues NAME,NAME.",
        ),
        ("dead retry", "Run 'jobq dead revive'"),
    ],
)
def test_command_line_of_another_queue_is_refused_with_its_remedy(line, text):
    done = CliRunner().invoke(app, line.split())
    assert (done.exit_code, text in done.output) == (2, True), done.output


def test_wrong_kinds_of_values_are_refused_with_the_right_ones():
    with pytest.raises(
        ConfigError, match=r"url has the type object; pass an address as text, such as redis://"
    ):
        jobq.connect(object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"not one call: \[greet\.args\(…\)\]"):
        greet.enqueue_many(greet.args("a"))  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"mid UUID\(.*\) can't be used; use a str of 1-128"):
        greet.options(mid=uuid4())  # type: ignore[typeddict-item]
    with pytest.raises(
        CodecError, match=r"must be bytes, not <Job .*greet>; to enqueue a function call, put @job"
    ):
        jobq.Queue("low", jobq.connect("redis://127.0.0.1:1")).enqueue(greet)  # type: ignore[arg-type]
