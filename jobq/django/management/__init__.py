"""Where Django looks for commands of manage.py."""
