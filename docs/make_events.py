"""Writes the tables of `docs/reference/events.md` from the code: `python docs/make_events.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jobq.events import COLUMNS  # noqa: E402
from jobq.pipeline.schema import EVENT_COLUMNS, VIEWS, Columns, markdown  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "events.md"
BEGIN, END = "<!-- made by docs/make_events.py: {} -->", "<!-- end of {} -->"


def _tables() -> dict[str, str]:
    """Return the text between each pair of marks, by the name in the marks."""
    docs = {column.name: column for column in EVENT_COLUMNS}
    rows = [f"| {n} | `{name}` | {docs[name].doc} |" for n, name in enumerate(COLUMNS, 1)]
    views = [f"### {name}\n\n{_columns(name, columns)}" for name, columns in VIEWS.items()]
    return {
        "record": "\n".join(["| | column | |", "|---|---|---|", *rows]),
        "views": "\n\n".join(views),
    }


def _columns(name: str, columns: Columns) -> str:
    """Return the table of a view; columns of the record aren't described again."""
    if name != "events":
        return markdown(columns)
    types: dict[str, list[str]] = {}
    for column in columns:
        if column.name in COLUMNS:
            types.setdefault(column.type, []).append(f"`{column.name}`")
    lines = [f"- {kind}: {', '.join(names)}" for kind, names in types.items()]
    others = tuple(column for column in columns if column.name not in COLUMNS)
    return "\n".join(
        [
            "The columns of [the record](#the-record):",
            "",
            *lines,
            "",
            "Other columns:",
            "",
            markdown(others),
        ]
    )


def page(text: str) -> str:
    """The page with its tables as the code has them."""
    for name, table in _tables().items():
        before, mark, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        if not mark or not end:
            raise SystemExit(f"{PAGE.name} has no marks of the table {name}")
        text = f"{before}{mark}\n\n{table}\n\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
