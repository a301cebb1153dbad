"""A Django project with the dashboard, asked under WSGI and under ASGI; prints its replies as JSON.

`python django_site.py`, with JOBQ_URL and DATABASE set. `python django_site.py session` prints the session of a new
superuser instead. `wsgi` and `asgi` are for servers. `python django_site.py wsgiref|runserver` starts one of those.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="of the tests",
    ALLOWED_HOSTS=["testserver", "127.0.0.1"],
    ROOT_URLCONF="django_site",
    WSGI_APPLICATION="django_site.wsgi",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"]}},
    INSTALLED_APPS=[
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
        "django.contrib.messages", "jobq.django",
    ],
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware", "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    JOBQ_DASHBOARD={"title": "mounted"},
)  # fmt: skip
django.setup()

from django.contrib import admin  # noqa: E402
from django.contrib.auth.models import Permission, User  # noqa: E402
from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.test import AsyncClient, Client  # noqa: E402
from django.urls import include, path  # noqa: E402

urlpatterns = [
    path("ops/jobq/", include("jobq.django.urls")),
    path("admin/", admin.site.urls),
]
wsgi, asgi = get_wsgi_application(), get_asgi_application()
SAME = {"sec-fetch-site": "same-origin"}
CHOICE = {"theme": "dark", "next": "/ops/jobq/queues"}


def users() -> dict[str, User]:
    """A user for each permission, one with none, a superuser."""
    made = {}
    for name, codes in {
        "anna": ["admin", "arguments"],
        "none": [],
        "read": ["read"],
        "operate": ["operate"],
    }.items():
        made[name] = User.objects.create_user(name, is_staff=True)
        for code in codes:
            made[name].user_permissions.add(
                Permission.objects.get(content_type__app_label="jobq", codename=code)
            )
    return {**made, "root": User.objects.create_superuser("root", password="x")}


def facts(reply: object) -> list[object]:
    """Return the parts of a reply to compare: status, location, text, headers, cookies."""
    cookies = [one.OutputString() for one in reply.cookies.values()]  # type: ignore[attr-defined]
    text = reply.content.decode()  # type: ignore[attr-defined]
    return [reply.status_code, reply.get("Location", ""), text, dict(reply.headers), cookies]  # type: ignore[attr-defined]


def asked(client: Client) -> dict[str, list[object]]:
    """The replies to one visitor under WSGI."""
    return {
        "queues": facts(client.get("/ops/jobq/queues")),
        "root": facts(client.get("/ops/jobq/")),
        "missing": facts(client.get("/ops/jobq/nothing")),
        "choice": facts(client.post("/ops/jobq/view", CHOICE, headers=SAME)),
        "foreign": facts(client.post("/ops/jobq/view", CHOICE, headers={"sec-fetch-site": "cross-site"})),
        "large": facts(client.post("/ops/jobq/view", {"next": "x" * 1_200_000}, headers=SAME)),
        "end": facts(client.post("/ops/jobq/workers/w/end", headers=SAME)),
        "index": facts(client.get("/admin/")),
        "entry": facts(client.get("/admin/jobq/dashboard/")),
    }  # fmt: skip


async def asked_async(user: User | None) -> dict[str, list[object]]:
    """Return the same replies under ASGI."""
    client = AsyncClient()
    if user is not None:
        await client.aforce_login(user)
    return {
        "queues": facts(await client.get("/ops/jobq/queues")),
        "root": facts(await client.get("/ops/jobq/")),
        "missing": facts(await client.get("/ops/jobq/nothing")),
        "choice": facts(await client.post("/ops/jobq/view", CHOICE, headers=SAME)),
        "foreign": facts(await client.post("/ops/jobq/view", CHOICE, headers={"sec-fetch-site": "cross-site"})),
        "end": facts(await client.post("/ops/jobq/workers/w/end", headers=SAME)),
    }  # fmt: skip


def main() -> None:
    """Ask as every user."""
    warnings.simplefilter("error", RuntimeWarning)
    call_command("migrate", verbosity=0)
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    call_command("check", verbosity=0)
    known: dict[str, User | None] = {**users(), "": None}
    replies = {}
    for name, user in known.items():
        client = Client(enforce_csrf_checks=True)
        if user is not None:
            client.force_login(user)
        replies[name] = {"wsgi": asked(client), "asgi": asyncio.run(asked_async(user))}
    print(json.dumps(replies))


def session() -> None:
    """Make the database, and print a superuser's session."""
    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    print(client.cookies["sessionid"].value)


def by_wsgiref() -> None:
    """Serve with the server of Python's library."""
    from wsgiref.simple_server import make_server

    with make_server("127.0.0.1", 0, wsgi) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()


def by_runserver() -> None:
    """Serve with `manage.py runserver`."""
    call_command("runserver", "127.0.0.1:0", use_reloader=False, skip_checks=True)


if __name__ == "__main__":
    sys.modules["django_site"] = sys.modules["__main__"]
    ways = {"session": session, "wsgiref": by_wsgiref, "runserver": by_runserver}
    ways.get(sys.argv[-1], main)()
