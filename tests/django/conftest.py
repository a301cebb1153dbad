"""The fixture `project` for every file of this folder."""

from __future__ import annotations

from tests.django.test_project import project as project
