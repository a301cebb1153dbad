"""Parse a request's filter, and show messages with the sender's rights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request

from jobq.jobs.registry import default_registry
from jobq.observe.redaction import DeclaredNames, Redactor
from jobq.web.contents import Contents
from jobq.web.filters import Filter, FilterError, parse
from jobq.web.routes import identity_of
from jobq.web.site import Site, site_of


class AskedFilter(NamedTuple):
    """The filter in a request.

    Attributes:
        error: Reason why the text can't be parsed, or ''. If there is a reason, the filter is empty.
    """

    text: str
    filter: Filter
    error: str = ""

    def check(self) -> None:
        """Raise FilterError if the filter can't be parsed."""
        if self.error:
            raise FilterError(self.error)


def contents_of(request: Request) -> Contents:
    """Return a reader that shows contents with the rights of the request's sender."""
    site = site_of(request)
    return Contents(
        site.client, redactor_of(site), arguments=identity_of(request).arguments,
        hide_errors=site.settings.hide_errors,
    )  # fmt: skip


def filter_of(request: Request, keys: Sequence[str]) -> AskedFilter:
    """Parse the filter in the query parameter `f`."""
    text = request.query_params.get("f", "")
    try:
        return AskedFilter(
            text, parse(text, may_see_arguments=identity_of(request).arguments, keys=keys)
        )
    except FilterError as error:
        return AskedFilter(text, Filter(), str(error))


def redactor_of(site: Site) -> Redactor:
    """Return the redactor of secrets for this dashboard's pages."""
    return site.part(Redactor, _redactor)


def _redactor(site: Site) -> Redactor:
    return Redactor(site.settings.redact, default_registry, DeclaredNames(site.client))
