"""A Django app with the outbox tables. Add "jobq.django.outbox" to INSTALLED_APPS and run `manage.py migrate`."""
