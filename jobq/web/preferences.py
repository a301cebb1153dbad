"""A viewer's display choices, kept in two cookies: theme, height of rows, time zone and live refresh."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import parse_qsl, unquote, urlencode
from zoneinfo import ZoneInfo

COOKIE = "jobq_view"
#: Set by app.js: the zone of the browser.
ZONE_COOKIE = "jobq_zone"
_OPERATION = re.compile(r"[0-9a-f]{16}")
CHOICES = {
    "theme": ("system", "light", "dark"),
    "rows": ("normal", "compact"),
    "zone": ("browser", "utc", "server"),
    "live": ("on", "off"),
}


@dataclass(frozen=True)
class Preferences:
    """A viewer's choices."""

    theme: str = "system"
    rows: str = "normal"
    zone: str = "browser"
    live: str = "on"
    #: The operation whose note the viewer has read; '' if none.
    read: str = ""

    @property
    def text(self) -> str:
        """The value of the cookie."""
        return urlencode(asdict(self))


def preferences(cookies: Mapping[str, str]) -> Preferences:
    """Read a viewer's choices. Missing and invalid choices get their defaults."""
    return chosen(dict(parse_qsl(cookies.get(COOKIE, "")[:500], max_num_fields=20)))


def chosen(values: Mapping[str, str], before: Preferences = Preferences()) -> Preferences:
    """Return `before`, updated with the valid choices in `values`."""
    known = {key: values[key] for key, allowed in CHOICES.items() if values.get(key) in allowed}
    if _OPERATION.fullmatch(values.get("read", "")):
        known["read"] = values["read"]
    return Preferences(**{**asdict(before), **known})


def zone_of(choice: str, cookies: Mapping[str, str]) -> ZoneInfo:
    """Return the time zone to show times in; UTC if the chosen zone is unknown."""
    try:
        if choice == "browser":
            return ZoneInfo(unquote(cookies.get(ZONE_COOKIE, ""))[:64] or "UTC")
        if choice == "server":
            return ZoneInfo("localtime")
    except (ValueError, OSError, KeyError):
        pass
    return ZoneInfo("UTC")
