"""The management command `manage.py jobq`."""
