"""The dashboard's entry in the index of Django's admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse

from jobq.django.dashboard import may_read
from jobq.django.models import Dashboard


class DashboardLink(admin.ModelAdmin):
    """A link to the dashboard for users who may see it. There is nothing to list, add or change."""

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return may_read(request.user)

    def has_module_permission(self, request: Any) -> bool:
        # Without the dashboard's URLs, the link would have no target.
        try:
            reverse("jobq:dashboard")
        except NoReverseMatch:
            return False
        return may_read(request.user)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(reverse("jobq:dashboard"))


admin.site.register(Dashboard, DashboardLink)
