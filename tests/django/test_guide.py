"""The guide for Django, as a newcomer types it: from django-admin startproject to a task that is done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import tools
from tests.docs.pages import DEADLINE_S, ROOT, Shell, type_page

django = tools.library("django")
PAGE = Path("docs/jobs/django.md")
#: Another test installs jobq.
NOT_RUN = ("pip install",)


@pytest.mark.one_server
def test_guide_leads_from_a_new_project_to_a_task_that_is_done(server, client, tmp_path):
    text = (ROOT / PAGE).read_text()
    if django.VERSION < (6, 0):
        # As the guide says for Django 5.2.
        tools.library("django_tasks")
        text = text.replace("django.tasks", "django_tasks")
        text = text.replace('["jobq.django", "shop"]', '["django_tasks", "jobq.django", "shop"]')
    settings = re.compile(
        r"^```python\n# mysite/settings\.py\n(.*?)^```$", re.DOTALL | re.MULTILINE
    )
    added = settings.search(text)
    assert added
    shell = Shell(tmp_path, server.url, {"DJANGO_SETTINGS_MODULE": "mysite.settings"})
    try:
        type_page(shell, text[: added.start()], lambda command: command.startswith(NOT_RUN))
        with (tmp_path / "mysite" / "settings.py").open("a") as file:
            file.write(added[1])
        # What `manage.py shell` does.
        shell.type("import django; django.setup()")
        type_page(shell, text[added.end() :], lambda command: False)
        [worker] = shell.servers
        assert shell.interrupt(worker) == 0, shell.output()
        assert "Traceback" not in shell.output()
        assert worker.wait(DEADLINE_S) == 0
    finally:
        shell.close()
