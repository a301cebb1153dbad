"""The settings of a dashboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobq.client.names import checked_name
from jobq.errors import ConfigError, masked
from jobq.web.access.identity import Identity
from jobq.web.access.settings import AccessSettings

_TRACE = re.compile(r"https?://[^\s{}]*\{trace_id\}[^\s{}]*")
_HOME = re.compile(r"(https?:/)?/[^\s/\\][^\s\\]*|/")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class WebSettings:
    """Settings of one dashboard.

    Attributes:
        title: Name of this installation, shown in the header.
        accent: Accent colour of the pages, such as `#1f5fa5`.
        prefix: First part of every path, such as `/ops/jobq`, if the proxy does not remove it.
        read_only: Reject every action.
        lake, storage: Path of the lake with the history, and options for the lake's storage.
        source: The name of this server in a lake that several servers share.
        redact: Additional patterns for names of arguments whose values are hidden.
        hide_errors: Show the types of errors, not their texts.
        trace_url: Link to a trace, with {trace_id} in place of the id.
        modules: Modules with jobs that this process imported.
        identify: Function that returns the identity of a request's sender, or None. Set it if your program serves the
            dashboard.
        hosts: Host names under which your program serves the dashboard. Without names, your program must check the Host
            header itself.
        access: Access rules of `jobq web`, instead of `identify` and `hosts`.
        home_url, home_label: Address and text of a link in the header, for example to your program.
    """

    title: str = "jobq"
    accent: str = ""
    prefix: str = ""
    read_only: bool = False
    lake: str = ""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    source: str = ""
    redact: tuple[str, ...] = ()
    hide_errors: bool = False
    trace_url: str = ""
    modules: tuple[str, ...] = ()
    identify: Callable[[Any], Identity | None] | None = None
    hosts: tuple[str, ...] = ()
    access: AccessSettings | None = None
    home_url: str = ""
    home_label: str = "Home"

    @property
    def who_may(self) -> AccessSettings:
        """The access rules. Raises ConfigError if there are none."""
        return self.access or AccessSettings(identify=self.identify, hosts=self.hosts)

    def __post_init__(self) -> None:
        if self.source:
            checked_name("source", self.source)
        if self.accent and not _COLOUR.fullmatch(self.accent):
            raise ConfigError(f"accent={self.accent!r:.50} is not a colour; write it like #1f5fa5")
        if self.prefix and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.prefix):
            raise ConfigError(f"prefix={self.prefix!r:.200} is not a path; write it like /ops/jobq")
        if self.home_url and not _HOME.fullmatch(self.home_url):
            raise ConfigError(
                f"home_url={masked(self.home_url)!r:.200} is not a link; write a path such as /admin/, or a URL"
            )
        if self.trace_url and not _TRACE.fullmatch(self.trace_url):
            raise ConfigError(
                f"trace_url={masked(self.trace_url)!r:.200} is not a link; write https://traces.example.com/trace/{{trace_id}}"
            )
