"""Which lake a verb works on: `--lake`, else JOBQ_LAKE, and how to reach a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jobq.cli.options import Function, option
from jobq.errors import ConfigError

if TYPE_CHECKING:
    from jobq.pipeline.lake.place import Lake

_storage = option(
    "--storage-option", "storage", metavar="KEY=VALUE", multiple=True,
    help="How to reach a bucket, such as AWS_ENDPOINT_URL=…; repeat for more. AWS_… variables count too.",
)  # fmt: skip


def lake_options(function: Function, needed: str = "required") -> Function:
    """--lake and --storage-option; `needed` tells when --lake is."""
    lake = option(
        "--lake", "path", metavar="PATH", shared=("JOBQ_LAKE",),
        help=f"The lake: a folder, or s3://bucket/folder.  [{needed}]",
    )  # fmt: skip
    return lake(_storage(function))


def opened(path: str | None, storage: Sequence[str], *, create: bool = False) -> Lake:
    """The lake that the options name."""
    from jobq.pipeline.lake.place import Lake

    make: Callable[..., Lake] = Lake.create if create else Lake.open
    return make(path, dict(map(_pair, storage)))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--storage-option {key!r} has no value; write KEY=VALUE")
    return key, value
