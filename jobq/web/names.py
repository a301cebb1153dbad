"""Names in paths: any text is one part of a path, whatever it holds.

Most characters are percent-encoded as usual. Servers, proxies and browsers change some encoded ones: they take
`%2F` for `/`, and drop `.` and `..`. Those are written with a tilde: `~2F`, `~2E`.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.convertors import Convertor, register_url_convertor

#: Characters that don't survive in a path as percent codes, and the tilde itself.
_CHANGED = re.compile(r"[\x00-\x20/\\~%;\x7f]|^\.+$")
_TILDE = re.compile(r"~([0-9A-Fa-f]{2})")


def tilded(name: str) -> str:
    """`a/b` -> `a~2Fb`; the empty name is a lone tilde."""
    return _CHANGED.sub(lambda found: "".join(f"~{ord(c):02X}" for c in found[0]), name) or "~"


def untilded(text: str) -> str:
    """Return the text before `tilded`."""
    return "" if text == "~" else _TILDE.sub(lambda found: chr(int(found[1], 16)), text)


def encoded(name: str) -> str:
    """Return `name` as a part of a path."""
    return quote(tilded(name).encode("utf-8", "surrogatepass"), safe="~:@,")


class NameConvertor(Convertor[str]):
    """`{queue:name}` in a route: one part of the path, any text."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Return the name that the part of a path stands for."""
        return untilded(value)

    def to_string(self, value: str) -> str:
        """Return the part of a path for a name."""
        return encoded(value)


register_url_convertor("name", NameConvertor())
