"""Access to this dashboard's sampler and its latest reading."""

from __future__ import annotations

from starlette.requests import Request

from jobq.web.sampler import Sampler, Snapshot
from jobq.web.site import Site, site_of


def sampler_of(site: Site) -> Sampler:
    """Return the one sampler of a dashboard."""
    return site.part(Sampler, lambda site: Sampler(site.client))


def snapshot_of(request: Request) -> Snapshot:
    """Return the newest reading of the server that a request is about."""
    return sampler_of(site_of(request)).look()
