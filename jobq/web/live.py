"""The sampler of a dashboard, and the latest snapshot that it took."""

from __future__ import annotations

from starlette.requests import Request

from jobq.web.sampler import Sampler, Snapshot
from jobq.web.site import Site, site_of


def sampler_of(site: Site) -> Sampler:
    """Return the dashboard's sampler."""
    return site.part(Sampler, lambda site: Sampler(site.client))


def snapshot_of(request: Request) -> Snapshot:
    """Return the latest snapshot for the dashboard that serves a request."""
    return sampler_of(site_of(request)).look()
