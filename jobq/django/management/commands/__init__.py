"""`manage.py jobq`."""
