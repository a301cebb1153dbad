"""The tables of the outbox as an app of Django: add "jobq.django.outbox" to INSTALLED_APPS, and migrate."""
