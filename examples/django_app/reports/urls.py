"""Map URLs to views."""

from django.urls import path

from reports import views

urlpatterns = [
    path("", views.page),
    path("reports", views.create),
    path("reports/<str:mid>", views.show),
    path("reports/<str:mid>/cancel", views.cancel),
]
