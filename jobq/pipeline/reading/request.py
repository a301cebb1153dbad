"""Check the options of a read on the driver, and convert them to plain data for the executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.errors import ConfigError
from jobq.pipeline.options import PLACE, SparkOptions, unknown
from jobq.pipeline.schema import VIEWS, Column, Columns, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


CORRUPT = Column("_corrupt_record", "binary", "Bytes of an entry that isn't a record; else null.")
MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
#: Options of a read, by view.
_BASIC = (*PLACE, "view", "columns", "partitions")
_SPAN = ("since", "until")
_OFFSETS = ("startingOffsets", "failOnDataLoss")
READ: dict[str, tuple[str, ...]] = {
    "events": (*_BASIC, "queues", *_SPAN, *_OFFSETS, "endingOffsets", "mode"),
    "messages": (*_BASIC, "queues"),
    "queues": (*_BASIC, "queues"),
    "dead": (*_BASIC, "queues", *_SPAN),
    "topic": (*_BASIC, "topics", *_SPAN, *_OFFSETS, "endingOffsets"),
}
#: Options of a stream by view.
STREAM: dict[str, tuple[str, ...]] = {
    "events": (*_BASIC, "queues", *_SPAN, *_OFFSETS, "maxRowsPerTrigger", "trimOnCommit", "mode"),
    "topic": (*_BASIC, "topics", *_SPAN, *_OFFSETS, "maxRowsPerTrigger"),
}
#: Columns that are read only if they are named, because they are often most of the bytes.
_ON_DEMAND = {"messages": ("content",)}


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """The checked options of a read.

    Attributes:
        names: Queues or topics to read; empty reads all.
        strict: Whether to raise DataLossError for lost entries. If not, the loss is logged.
    """

    view: str
    settings: ServerSettings = field(repr=False)
    columns: Columns
    names: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    starting: str = "earliest"
    ending: str = "latest"
    partitions: int = 0
    strict: bool = True
    mode: str = "FAILFAST"
    max_rows: int = 0
    trims: bool = False

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the rows."""

        return arrow_schema(self.columns)

    def wants(self, *names: str) -> bool:
        """Return whether any of these columns is read."""
        return any(column.name in names for column in self.columns)

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """Open a client for the duration of a `with` block."""

        client = Client(self.settings)
        try:
            yield client
        finally:
            client.close()


def view_of(given: Mapping[str, str], stream: bool = False) -> str:
    """Return the view to read. Raises ConfigError if the view is unknown or can't be streamed."""
    text = next((value for name, value in given.items() if name.lower() == "view"), "events")
    view = text.strip().lower()
    if view not in VIEWS:
        raise ConfigError(unknown("view", text, VIEWS))
    if stream and view not in STREAM:
        raise ConfigError(f"view {view!r} can't be streamed; use one of {', '.join(STREAM)}")
    return view


def columns_of(given: Mapping[str, str]) -> Columns:
    """Return the columns listed in the option `columns`, in the same order, or the view's default columns."""
    view = view_of(given)
    every = [name for names in (*READ.values(), *STREAM.values()) for name in names]
    # Spark doesn't say yet whether it will read or stream: requested() checks that.
    options = SparkOptions(given, every)
    permissive = view == "events" and options.choice("mode", MODES, "FAILFAST") == "PERMISSIVE"
    known = {column.name: column for column in (*VIEWS[view], *[CORRUPT] * permissive)}
    names = options.names("columns")
    if not names:
        names = tuple(name for name in known if name not in _ON_DEMAND.get(view, ()))
    elif names == ("*",):
        names = tuple(known)
    for name in names:
        if name not in known:
            raise ConfigError(unknown(f"column of view {view!r}", name, known))
    return tuple(known[name] for name in names)


def _options(given: Mapping[str, str], view: str, stream: bool) -> SparkOptions:
    """Return the options. Raises ConfigError for an option of another view, or for a stream's option in a read."""
    here, there = (STREAM, READ) if stream else (READ, STREAM)
    known = {name.lower() for name in here[view]}
    for name in given:
        if name.lower() in known:
            continue
        if name.lower() in map(str.lower, there.get(view, ())):
            kind = "streams" if stream else "reads"
            raise ConfigError(
                f"option {name!r} doesn't apply to {kind} of view {view!r}; leave it out"
            )
        views = [other for other, names in here.items() if name.lower() in map(str.lower, names)]
        if views:
            raise ConfigError(
                f"option {name!r} doesn't apply to view {view!r}, only to {', '.join(views)}; leave it out"
            )
    return SparkOptions(given, here[view])


def check_options(given: Mapping[str, str]) -> None:
    """Raise ConfigError for invalid values, and for options that neither a read nor a stream of the view accepts.

    The check runs before Spark chooses between a read and a stream.
    """
    view = view_of(given)
    streams, reads = (
        {name.lower() for names in views.values() for name in names} for views in (STREAM, READ)
    )
    is_stream = any(name.lower() in streams - reads for name in given)
    _values(given, view, stream=is_stream and view in STREAM)


def requested(
    given: Mapping[str, str], columns: Columns | None = None, stream: bool = False
) -> ReadRequest:
    """Make a read request from options.

    Args:
        columns: Columns of the user's schema, if there is one.
    """
    view = view_of(given, stream)
    options, values = _values(given, view, stream)
    return ReadRequest(
        view=view, settings=_settings(options), columns=columns or columns_of(given), **values
    )


def _values(
    given: Mapping[str, str], view: str, stream: bool
) -> tuple[SparkOptions, dict[str, Any]]:
    options = _options(given, view, stream)
    since, until = options.moment("since"), options.moment("until")
    if since is not None and "startingOffsets" in options:
        raise ConfigError("use either since or startingOffsets, not both")
    if until is not None and "endingOffsets" in options:
        raise ConfigError("use either until or endingOffsets, not both")
    names = options.names("topics" if view == "topic" else "queues")
    return options, {
        "names": () if names == ("*",) else names,
        "since_ms": None if since is None else round(since.timestamp() * 1000),
        "until_ms": None if until is None else round(until.timestamp() * 1000),
        "starting": options.text("startingOffsets", "earliest").strip(),
        "ending": options.text("endingOffsets", "latest").strip(),
        "partitions": options.number("partitions", 0),
        "strict": options.flag("failOnDataLoss", True),
        "mode": options.choice("mode", MODES, "FAILFAST"),
        "max_rows": options.number(
            "maxRowsPerTrigger", 0, 1 if "maxRowsPerTrigger" in options else 0
        ),
        "trims": options.flag("trimOnCommit", False),
    }


def _settings(options: SparkOptions) -> ServerSettings:
    """Return the server's settings, resolved on the driver.

    Executors have neither the driver's environment nor its files.
    """

    settings = replace(options.server(), codec=None)
    return replace(settings, url=Client(settings).url)
