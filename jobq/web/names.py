"""Names in paths: any text can be encoded as one part of a path.

Most characters are percent-encoded as usual. Servers, proxies and browsers change some encoded characters: they
turn `%2F` into `/`, and drop `.` and `..`. Such characters are encoded with a tilde instead: `~2F`, `~2E`.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.convertors import Convertor, register_url_convertor

#: Characters that don't survive in a path as percent codes, and the tilde itself.
_CHANGED = re.compile(r"[\x00-\x20/\\~%;\x7f]|^\.+$")
_TILDE = re.compile(r"~([0-9A-Fa-f]{2})")


def tilded(name: str) -> str:
    """Encode unsafe characters with tildes: `a/b` -> `a~2Fb`. The empty name becomes a lone tilde."""
    return _CHANGED.sub(lambda match: "".join(f"~{ord(c):02X}" for c in match[0]), name) or "~"


def untilded(text: str) -> str:
    """Decode a text that `tilded` encoded."""
    return "" if text == "~" else _TILDE.sub(lambda match: chr(int(match[1], 16)), text)


def encoded(name: str) -> str:
    """Return `name` as a part of a path."""
    return quote(tilded(name).encode("utf-8", "surrogatepass"), safe="~:@,")


class NameConvertor(Convertor[str]):
    """Converts a route parameter such as `{queue:name}`: any text, encoded as one part of the path."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Decode the name in a part of a path."""
        return untilded(value)

    def to_string(self, value: str) -> str:
        """Encode a name as a part of a path."""
        return encoded(value)


register_url_convertor("name", NameConvertor())
