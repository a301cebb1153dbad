"""Tools that tasks import from celery.utils."""
