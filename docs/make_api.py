"""Writes the pages of `docs/reference/api/` and the table of options from docstrings: `python docs/make_api.py`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import UnionType
from typing import Any, get_overloads, is_typeddict

import msgspec

from jobq.jobs.options import JobSettings, Options
from jobq.jobs.registry import BatchDeclaration, Declaration
from jobq.jobs.retry import DEFAULT_RETRIES

DOCS = Path(__file__).parent
FOLDER = DOCS / "reference" / "api"
#: Where the table of options is in the guide, between these two lines.
GUIDE = DOCS / "jobs" / "options.md"
BEGIN, END = "<!-- options: python docs/make_api.py -->", "<!-- end of options -->"

#: Members that a page names, of classes that have others for jobq itself.
MEMBERS = {
    "jobq.Job": "enqueue aenqueue enqueue_many aenqueue_many args options receipt check_arguments queue",
    "jobq.Receipt": "queue accepted state astate result aresult progress follow afollow cancel acancel revive arevive "
    "status astatus",
    "jobq.Context": "job queue mid attempt failures max_attempts fence token enqueued_at tick missed flow headers size "
    "trace_id span_id lease_left lease_valid hard_limit progress checkpoint checkpoint_value logger overrule",
    "jobq.Calls": "done fail open of",
    "jobq.BatchedCall": "",
    "jobq.Registry": "get names known_names worker_started",
    "jobq.Flow": "step map wait at start astart",
    "jobq.RateLimit": "try_acquire atry_acquire acquire aacquire hold ahold",
    "jobq.ConcurrencyLimit": "slot hold ahold",
    "jobq.limits.Grant": "adjust aadjust undo aundo",
    "jobq.limits.SlotLease": "lost leave aleave",
    "jobq.Queue": "enqueue enqueue_many dequeue finish extend release progress status content cancel why rules rule "
    "result_key on",
    "jobq.queue.admin.Admin": "counts content keys iter_keys pause resume dead iter_dead iter_entries revive "
    "bin run_now reschedule purge clear log retention fsck events_level events_maxlen",
    "jobq.queue.types.EnqueuedMany": "",
    "jobq.jobs.middleware.Middlewares": "add remove",
    "jobq.topics.Topic": "append append_many reader group read get find groups describe set_limits limits trim "
    "compact delete",
    "jobq.topics.Reader": "poll commit extend release interrupt interrupted close",
    "jobq.topics.AsyncReader": "poll commit extend release interrupt close",
    "jobq.topics.RedismqTopic": "append append_many reader read last index_at delete",
    "jobq.topics.RedismqReader": "poll seek unsubscribe lag",
}
#: Classes whose objects come from jobq alone.
MADE_BY_JOBQ = frozenset(
    ("Job", "Receipt", "Context", "Calls", "BatchedCall", "Grant", "SlotLease", "Admin", "Reader", "TopicGroup", "AsyncReader", "AsyncTopicGroup",
     "RedismqReader", "MemberFlow", "KitClock")
)  # fmt: skip
#: Classes with awaitable methods, and the classes whose methods they otherwise repeat.
TWINS = {
    "jobq.topics.AsyncTopic": "jobq.topics.Topic",
    "jobq.topics.AsyncReader": "jobq.topics.Reader",
    "jobq.topics.AsyncTopicGroup": "jobq.topics.TopicGroup",
}
#: An awaitable member whose name isn't `a` and the name of the blocking member -> the blocking member.
AWAITABLE = {"await_end": "wait"}
#: Page -> its title, its summary, and its parts with their names.
PAGES: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {
    "jobs": ("Jobs", "Declare jobs, enqueue calls, follow them, and report from inside.", {
        "Declare": ("jobq.job", "jobq.schedule", "jobq.worker_started", "jobq.Registry"),
        "Enqueue": ("jobq.Job", "jobq.outbox.enqueue", "jobq.outbox.enqueue_many", "jobq.outbox.aenqueue",
                    "jobq.outbox.aenqueue_many", "jobq.outbox.schema"),
        "Follow": ("jobq.Receipt", "jobq.State"),
        "Inside a job": ("jobq.current", "jobq.Context", "jobq.Calls", "jobq.BatchedCall", "jobq.outbox.inbox.once", "jobq.outbox.inbox.aonce"),
    }),
    "flows": ("Flows", "Graphs, chains and maps of jobs.", {
        "Define and start": ("jobq.Flow", "jobq.Batch"),
        "Follow": ("jobq.FlowRun", "jobq.flows.state.FlowView"),
        "Inside a step": ("jobq.jobs.membership.MemberFlow",),
    }),
    "retries": ("Retries and middleware", "How long jobs wait before retries, dead messages, and code around attempts.", {
        "Policies": ("jobq.retry.fixed", "jobq.retry.linear", "jobq.retry.exponential", "jobq.retry.listed"),
        "Outcomes that a job requests": ("jobq.Retry", "jobq.Snooze", "jobq.HoldKey", "jobq.Dead"),
        "After the last attempt": ("jobq.DeadCall",),
        "Middleware": ("jobq.middleware.add", "jobq.middleware.remove", "jobq.jobs.middleware.Middlewares"),
    }),
    "limits": ("Limits", "Limits that all processes share.", {
        "Rates": ("jobq.RateLimit", "jobq.limits.Grant"),
        "Slots": ("jobq.ConcurrencyLimit", "jobq.limits.SlotLease"),
    }),
    "queue": ("Queues", "The layer below jobs: a queue enqueues bytes, hands them out, and ends attempts.", {
        "Connect": ("jobq.connect", "jobq.default_client", "jobq.set_default_client"),
        "Queue": ("jobq.Queue", "jobq.queue.admin.Admin"),
        "Values": tuple(f"jobq.queue.types.{name}" for name in (
            "Message", "Ending", "Lease", "Enqueued", "EnqueuedMany", "Dequeued", "Finished", "Status", "Counts", "Entry",
            "Page", "DeadMessage")),
    }),
    "topics": ("Topics", "Logs of messages that groups of readers follow.", {
        "Topics": ("jobq.topics.Topic", "jobq.topics.Reader", "jobq.topics.TopicGroup"),
        "Values": tuple(f"jobq.topics.messages.{name}" for name in (
            "Record", "TopicMessage", "TopicBatch", "Appended", "Lag", "Retention", "Description")),
        "asyncio": ("jobq.topics.AsyncTopic", "jobq.topics.AsyncReader", "jobq.topics.AsyncTopicGroup"),
        "Topics of redismq": ("jobq.topics.RedismqTopic", "jobq.topics.RedismqReader"),
    }),
    "testing": ("Testing", "The kit, and single attempts without a server.", {
        "The kit": ("jobq.testing.Kit", "jobq.testing.clock.KitClock", "jobq.testing.kit", "jobq.testing.kit_for",
                    "jobq.testing.allow_server"),
        "Single attempts": ("jobq.testing.run_job", "jobq.testing.running", "jobq.testing.attempts.AttemptFacts"),
        "Values": ("jobq.testing.RunResult", "jobq.testing.DrainResult", "jobq.testing.EnqueuedCall"),
    }),
    "errors": ("Errors", "Every error of jobq is a `JobqError`. To end its attempt, a job raises an `Outcome`: [Retry, Snooze, HoldKey or Dead](retries.md#outcomes-that-a-job-requests).", {
        "Errors": (), "Ends of attempts": (),  # without the names of other pages
    }),
}  # fmt: skip
EXAMPLE = """Each method is one Lua script.

```python
from jobq import Ending, Queue

queue = Queue("bytes")
queue.enqueue(b"...", mid="m")
for message in queue.dequeue(10, lease=15).messages:
    queue.finish([Ending(mid=message.mid, token=message.token)])
```

For consumers in other languages, or loops without leases, [RELIABLEQ](../../interop/reliable.md) is simpler.
"""
_DEFAULTS = {
    "retries": str(DEFAULT_RETRIES), "retry": "exponential()", "name": '"module.function"', "registry": "default_registry",
    "ordered": "False",
    "headers": "{}",
}  # fmt: skip
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")


def pages() -> dict[Path, str]:
    """File -> its text."""
    texts = {FOLDER / f"{name}.md": page(name) for name in PAGES}
    lines = [f"- [{title}]({name}.md): {about}" for name, (title, about, _) in PAGES.items()]
    names = "\n".join(PAGES)
    texts[FOLDER / "index.md"] = (
        "# Python API\n\nEvery public name, from its docstring. "
        'A `Duration` is seconds, a timedelta, or text such as "500ms", "5m" or "1h30m".\n\n'
        "A name with an `a` before it, such as `aresult`, is the awaitable form: it doesn't block the event loop, and "
        "cancelling it ends its wait.\n\n"
        + "\n".join(lines)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )
    before, _, rest = GUIDE.read_text(encoding="utf-8").partition(BEGIN)
    texts[GUIDE] = f"{before}{BEGIN}\n\n{options_table()}\n\n{END}{rest.partition(END)[2]}"
    return texts


def page(name: str) -> str:
    """Return the Markdown of a page of the API."""
    title, about, parts = PAGES[name]
    pieces = [f"# {title}", about]
    if name == "queue":
        pieces.append(EXAMPLE.strip())
    for part, names in parts.items():
        pieces.append(f"## {part}")
        for dotted in names or _errors(part == "Errors"):
            if dotted not in {awaitable for awaitable, _ in _awaitable(names)}:
                pieces += _entry(dotted, page_names=names)
    return "\n\n".join(pieces) + "\n"


def options_table() -> str:
    """The options of `@job` and `.options`."""
    texts = {
        name: text
        for kind in (BatchDeclaration, Declaration, Options)
        for name, text in _named(_doc(kind), "Attributes")
    }
    head = "| option | default | meaning |\n|---|---|---|"
    rows = [head]
    for kind in (Options, BatchDeclaration):
        rows += (
            ["", "Only `@job` accepts these options:", "", head] if kind is BatchDeclaration else []
        )
        for name, annotation in kind.__annotations__.items():
            if kind is Options or name not in Options.__annotations__:
                shown = f"`{name}: {_type(annotation)}`".replace("|", "\\|")
                rows.append(f"| {shown} | `{_default(name)}` | {texts[name]} |")
    return "\n".join(rows)


def _default(name: str) -> str:
    if name in _DEFAULTS:
        return _DEFAULTS[name]
    value = dict(
        zip(JobSettings.__struct_fields__[::-1], JobSettings.__struct_defaults__[::-1])
    ).get(name)
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _errors(of_programs: bool) -> Iterator[str]:
    module = import_module("jobq.errors")
    elsewhere = {
        name for _, _, parts in PAGES.values() for names in parts.values() for name in names
    }
    for name, kind in vars(module).items():
        is_error = isinstance(kind, type) and issubclass(kind, BaseException)
        if (
            is_error
            and issubclass(kind, module.JobqError) == of_programs
            and f"jobq.{name}" not in elsewhere
        ):
            yield f"jobq.errors.{name}"


def _awaitable(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the awaitable members among these names, and for each the blocking member."""
    names = set(names)
    for name in names:
        before, dot, last = name.rpartition(".")
        blocking = f"{before}{dot}{AWAITABLE.get(last, last.removeprefix('a'))}"
        if blocking in names and blocking != name:
            yield name, blocking


def _entry(dotted: str, page_names: Iterable[str] = ()) -> Iterator[str]:
    """The heading, the signature and the text of one name."""
    thing = _found(dotted)
    yield f"### `{dotted}`"
    if dotted == "jobq.job":
        yield _code(
            f"@job\ndef function(...): ...\n\n{_options('@job(', ')')}\ndef function(...): ..."
        )
    elif isinstance(thing, type):
        yield _code(_of_class(thing))
    elif callable(thing):
        forms = _forms(dotted, page_names)
        yield _code("\n".join(way for form in forms for way in _signatures(_found(form))))
        yield from _texts(map(_found, forms))
    if isinstance(thing, type) and (text := _markdown(_doc(thing))):
        yield text
    if dotted == "jobq.job":
        yield "The guide [Options](../../jobs/options.md) explains each option."
    if isinstance(thing, type) and not is_typeddict(thing):
        yield from _members(dotted, thing)


def _forms(name: str, names: Iterable[str]) -> list[str]:
    """Return a name, then the name of its awaitable form if there is one."""
    return [name, *(awaitable for awaitable, blocking in _awaitable(names) if blocking == name)]


def _texts(things: Iterable[Any]) -> Iterator[str]:
    """Yield the docstring of a function, and of its awaitable form all but the first paragraph."""
    first, *others = map(_doc, things)
    yield from filter(
        None, [_markdown(first), *(_markdown(text.partition("\n\n")[2]) for text in others)]
    )


@cache
def _functions() -> dict[str, str]:
    """Docstring -> the function of the API with this docstring."""
    listed = (name for _, _, parts in PAGES.values() for names in parts.values() for name in names)
    return {_doc(thing): name for name in listed if inspect.isroutine(thing := _found(name))}


def _found(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError:
        return getattr(_found(module), name)


def _members(dotted: str, kind: type) -> Iterator[str]:
    listed = MEMBERS.get(dotted)
    names = list(_public(kind)) if listed is None else listed.split()
    properties, methods, repeated, same = [], [], [], []
    twin = _found(TWINS[dotted]) if dotted in TWINS else None
    awaitable = {name for name, _ in _awaitable(names)}
    for name in names:
        member = inspect.getattr_static(kind, name)
        if twin is not None and _doc(getattr(kind, name)) == _doc(getattr(twin, name, None)):
            repeated.append(name)
        elif isinstance(member, property):
            result = _type(inspect.signature(member.fget).return_annotation)  # type: ignore[arg-type]
            properties.append(f"- `{name}: {result}`: {' '.join(_doc(member).split())}")
        elif _doc(member) in _functions():
            same.append((f"`{name}`", f"`{_functions()[_doc(member)]}`"))
        elif name not in awaitable:
            methods += _method(kind, _forms(name, names))
    if properties:
        yield "\n".join(properties)
    if twin is not None:
        yield _repeated(kind, twin, repeated)
    if same:
        its, functions = zip(*same, strict=True)
        yield f"Its methods {' and '.join(its)} do the same as {' and '.join(functions)}."
    yield from methods


def _method(kind: type, forms: Sequence[str]) -> Iterator[str]:
    """The heading, the signatures and the text of a method and its awaitable form."""
    yield f"#### `{kind.__name__}.{forms[0]}`"
    members = [inspect.getattr_static(kind, form) for form in forms]
    functions = [getattr(member, "__func__", member) for member in members]
    ways = [way for function in functions for way in _signatures(function, kind, is_method=True)]
    yield _code("\n".join(ways))
    yield from _texts(getattr(kind, form) for form in forms)


def _repeated(kind: type, twin: type, names: list[str]) -> str:
    """Return a sentence about the methods that a class shares with its twin."""
    plain = [name for name in names if not inspect.iscoroutinefunction(getattr(kind, name))]
    awaited = ", ".join(f"`{name}`" for name in names if name not in plain)
    text = f"Await these methods, which work as in `{twin.__name__}`: {awaited}."
    if plain:
        text += f" {' and '.join(f'`{name}`' for name in plain)} don't need `await`; their objects have awaitable methods."
    return text


def _public(kind: type) -> Iterator[str]:
    """Names of the methods and properties of jobq's own classes that have a docstring."""
    seen = set()
    for base in kind.__mro__:
        if base.__module__.startswith("jobq"):
            for name, member in vars(base).items():
                member = getattr(member, "__func__", member)
                shown = inspect.isfunction(member) or isinstance(member, property)
                if (
                    shown
                    and not name.startswith("_")
                    and name not in seen | {"perform", "of"}
                    and member.__doc__
                ):
                    seen.add(name)
                    yield name


def _of_class(kind: type) -> str:
    """Return the constructor of a class, or its fields."""
    if issubclass(kind, BaseException):
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        return f"class {kind.__name__}({bases})"
    fields = {name: text for base in kind.__mro__[::-1] for name, text in getattr(base, "__annotations__", {}).items()
              if not name.startswith("_")}  # fmt: skip
    if is_typeddict(kind) or issubclass(kind, tuple | msgspec.Struct):
        given = getattr(kind, "_field_defaults", None) or _of_struct(kind)
        lines = [
            f"    {name}: {_type(text)}{f' = {_value(given[name])}' if name in given else ''}"
            for name, text in fields.items()
        ]
        return "\n".join([f"class {kind.__name__}:", *lines])
    if kind.__name__ in MADE_BY_JOBQ or "__init__" not in vars(kind):
        return f"class {kind.__name__}"
    ways = _signatures(kind.__init__, kind, is_method=True)  # type: ignore[misc]
    return "\n".join(
        f"class {kind.__name__}{way.removeprefix('__init__').removesuffix(' -> None')}"
        for way in ways
    )


def _of_struct(kind: type) -> dict[str, Any]:
    fields = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else ()  # type: ignore[arg-type]
    return {field.name: field.default for field in fields if field.default is not msgspec.NODEFAULT}


def _signatures(
    function: Any, kind: type | None = None, *, is_method: bool = False
) -> Iterator[str]:
    """The ways to call a function, as its overloads say."""
    for overload in get_overloads(function) or [function]:
        signature = inspect.signature(overload)
        parameters = list(signature.parameters.values())
        static = kind is not None and isinstance(vars(kind).get(function.__name__), staticmethod)
        shown = list(_parameters(parameters[1:] if is_method and not static else parameters))
        result = (
            ""
            if signature.return_annotation is signature.empty
            else f" -> {_type(signature.return_annotation)}"
        )
        begin = "async " if inspect.iscoroutinefunction(function) else ""
        yield _call(f"{begin}{function.__name__}(", shown, f"){result}")


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Texts of parameters. The options that a dict lists stand for it."""
    star = False
    for number, parameter in enumerate(parameters):
        kind = parameter.kind
        if kind is parameter.KEYWORD_ONLY and not star:
            yield "*"
        star |= kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        options = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if options:
            yield from [] if star else ["*"]
            yield from _keywords(_dict_named(options[1]))
            continue
        before = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        annotation = (
            "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
        )
        annotation = "" if annotation in (": P.args", ": P.kwargs") else annotation
        default = (
            ""
            if parameter.default is parameter.empty
            else f"{' = ' if annotation else '='}{_value(parameter.default)}"
        )
        yield f"{before}{parameter.name}{annotation}{default}"
        after = parameters[number + 1] if number + 1 < len(parameters) else None
        if kind is parameter.POSITIONAL_ONLY and (after is None or after.kind is not kind):
            yield "/"


def _dict_named(name: str) -> Any:
    """The TypedDict of this name, from the modules that are loaded."""
    for module in [module for key, module in sys.modules.items() if key.startswith("jobq")]:
        if is_typeddict(getattr(module, name, None)):
            return getattr(module, name)
    raise LookupError(name)


def _keywords(kind: Any) -> list[str]:
    return [
        f"{name}: {_type(annotation)} = ..." for name, annotation in kind.__annotations__.items()
    ]


def _options(begin: str, end: str) -> str:
    names = {**Options.__annotations__, **BatchDeclaration.__annotations__}
    return _call(
        begin,
        ["*", *(f"{name}: {_type(text)} = {_default(name)}" for name, text in names.items())],
        end,
    )


def _call(begin: str, parameters: list[str], end: str) -> str:
    text = begin + ", ".join(parameters) + end
    if len(text) <= 100:
        return text
    return begin + "\n" + "".join(f"    {parameter},\n" for parameter in parameters) + end


def _value(default: Any) -> str:
    return "..." if repr(default).startswith("<") else repr(default)


def _type(annotation: Any) -> str:
    """An annotation as it is written."""
    text = getattr(annotation, "__forward_arg__", annotation)
    if (
        isinstance(text, type)
        and not isinstance(text, UnionType)
        and not getattr(text, "__args__", None)
    ):
        text = text.__name__
    short = re.sub(r"\b(?:typing|collections\.abc|datetime)\.(?=[A-Z])", "", str(text))
    # Methods that an async twin awaits step by step return their value to the caller.
    return re.sub(r"^Steps\[(.*)\]$", r"\1", short)


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _doc(thing: Any) -> str:
    text = thing.__doc__ or ""
    return "" if text.startswith("Alias for field") else inspect.cleandoc(text)


def _named(text: str, section: str) -> Iterator[tuple[str, str]]:
    """The names of a section of a docstring, and their texts."""
    for title, lines in _sections(text):
        if title == section:
            for item in re.split(r"\n(?=\S)", dedent("\n".join(lines)).strip()):
                name, _, about = item.partition(":")
                yield name.strip("`* "), " ".join(about.split())


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    title, lines = "", []
    for line in text.splitlines():
        if _SECTION.match(line):
            yield title, lines
            title, lines = line.rstrip(":"), []
        elif title and line and not line.startswith(" "):
            yield title, lines
            title, lines = "", [line]
        else:
            lines.append(line)
    yield title, lines


def _markdown(text: str) -> str:
    """A docstring as Markdown: sections as lists, indented text after `::` as code."""
    pieces = []
    for title, lines in _sections(text):
        if title in ("Args", "Attributes", "Raises"):
            named = _named(f"{title}:\n" + "\n".join(lines), title)
            heading = "Raises:\n\n" if title == "Raises" else ""
            pieces.append(heading + "\n".join(f"- `{name}`: {about}" for name, about in named))
        else:
            pieces.append(_with_code("\n".join(lines).strip("\n")))
    return "\n\n".join(piece for piece in pieces if piece.strip())


def _with_code(text: str) -> str:
    """What is indented after a line that ends with `::` becomes a block of code."""

    def fenced(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{_code(dedent(match[2]).strip())}\n\n"

    return re.sub(
        r"^(.*:|):\n\n((?:[ ]{4}.*(?:\n|$)|\n)+)", fenced, text, flags=re.MULTILINE
    ).strip()


def write(texts: Mapping[Path, str]) -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(pages())
