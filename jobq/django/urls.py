"""The dashboard's URLs: add `path("admin/jobq/", include("jobq.django.urls"))` before the admin's line."""

from __future__ import annotations

from django.urls import path, re_path
from django.views.generic import RedirectView

from jobq.django.dashboard import dashboard

app_name = "jobq"
urlpatterns = [
    path("", dashboard, name="dashboard"),
    # The admin's index links to `<admin>/jobq/dashboard/`, which is one of these URLs if they are at `<admin>/jobq/`.
    path("dashboard/", RedirectView.as_view(pattern_name="jobq:dashboard")),
    re_path(r"^(?P<page>.+)$", dashboard, name="page"),
]
