"""The dashboard's URLs: add `path("admin/jobq/", include("jobq.django.urls"))` before the line of the admin."""

from __future__ import annotations

from django.urls import path, re_path
from django.views.generic import RedirectView

from jobq.django.dashboard import dashboard

app_name = "jobq"
urlpatterns = [
    path("", dashboard, name="dashboard"),
    # The admin's index links to this address, which is below ours if the two share a prefix.
    path("dashboard/", RedirectView.as_view(pattern_name="jobq:dashboard")),
    re_path(r"^(?P<page>.+)$", dashboard, name="page"),
]
