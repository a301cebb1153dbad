"""The framework under its one name here."""

from jobq.django.compat import TaskContext as TaskContext
from jobq.django.compat import TaskResultStatus as TaskResultStatus

try:
    from django.tasks import task as task
except ImportError:
    from django_tasks import task as task
