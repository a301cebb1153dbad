"""Writes the table of resources into `docs/reference/http-api.md`: `python docs/make_http_api.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from jobq.web.api.resource import RESOURCES, ROOT
from jobq.web.routes import load_pages

PAGE = Path(__file__).with_name("reference") / "http-api.md"
_MADE = re.compile(
    r"(<!-- made by docs/make_http_api.py -->\n).*?(<!-- end of the generated table -->)", re.DOTALL
)


def rows() -> Iterator[str]:
    """Yield the lines of the table."""
    load_pages()
    yield "| request | role | effect | parameters |"
    yield "|---|---|---|---|"
    for resource in sorted(RESOURCES.declared, key=lambda row: (row.path, row.method)):
        names = " ".join(
            f"`{parameter.name}`" for parameter in resource.parameters if parameter.place == "query"
        )
        yield f"| `{resource.method} {ROOT}{resource.path}` | {resource.role.word} | {resource.summary}. | {names} |"


def page() -> str:
    """Return the page with the current table."""
    text = PAGE.read_text(encoding="utf-8")
    return _MADE.sub(lambda marked: f"{marked[1]}\n" + "\n".join(rows()) + f"\n\n{marked[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
