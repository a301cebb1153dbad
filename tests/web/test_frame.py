"""Shared parts of pages: the frame, its files, a viewer's choices, pages for errors."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from jobq.client.connection import connect
from jobq.config import ServerSettings
from jobq.queue.queue import Queue
from jobq.web import UserRole
from jobq.web.assets import assets
from jobq.web.names import encoded, untilded
from tests.web.vendored import FOLDERS, listed

WEB = Path(__file__).parents[2] / "jobq" / "web"


def test_page_links_files_that_are_served_for_ever_under_their_hash(visit):
    page = visit(accent="#b3261e")
    text = page.get("/").text
    links = re.findall(r'(?:href|src)="(/static/[^"]+)"', text)
    assert len(links) == 5
    for link in links:
        reply = page.get(link)
        assert reply.status_code == 200 and "immutable" in reply.headers["cache-control"]
        assert hashlib.sha256(reply.content).hexdigest()[:12] in link
    assert page.get("/static/app.css").status_code == 404


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: one.parts[-4])
def test_vendored_files_are_those_that_were_published(folder: Path):
    files = listed(folder)
    assert {one["name"] for one in files} == {path.name for path in folder.glob("*.js")}
    for one in files:
        assert hashlib.sha256((folder / one["name"]).read_bytes()).hexdigest() == one["sha256"]


def test_script_stays_small_and_templates_escape():
    assert len(assets()["app.js"].content) <= 12 * 1024
    for path in (WEB / "templates").rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*safe|autoescape|<style|style=|<script>|\son[a-z]+=", text), path


def test_refresh_is_the_changing_part_and_nothing_while_that_is_as_before(visit, redis):
    page = visit()
    asked = {"X-Jobq-Live": "1"}
    first = page.get("/login", headers=asked)
    assert "<nav" not in first.text and 'id="main"' in first.text
    again = page.get("/login", headers={**asked, "If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_choice_of_a_viewer_lasts_and_returns_to_the_page(visit):
    page = visit()
    reply = page.post(
        "/view", data={"theme": "dark", "rows": "x", "next": "/?a=1"}, follow_redirects=False
    )
    assert (reply.status_code, reply.headers["location"]) == (303, "/?a=1")
    assert 'data-theme="dark" data-rows="normal"' in page.get("/").text
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:1"):
        reply = page.post("/view", data={"next": elsewhere}, follow_redirects=False)
        assert reply.headers["location"] == "/"


@pytest.mark.parametrize(
    "name", ["low", "a/b", "..", ".", "", "~2F", "ä 100%", "a\\b;c?d#e", "%2F"]
)
def test_any_name_is_one_part_of_a_path(name):
    part = encoded(name)
    assert "/" not in part and part.strip(".")
    # A server decodes percent codes once.
    assert untilded(unquote(part)) == name


def test_page_that_is_not_there_and_server_that_is_away_have_pages(visit, tmp_path):
    page = visit()
    reply = page.get("/nothing")
    assert reply.status_code == 404 and "There is no page at this address" in reply.text
    away = connect(settings=ServerSettings(url=f"unix://{tmp_path}/none", patience_s=0.1))
    with_away = visit()
    with_away.app.state.site.client = away
    reply = with_away.get("/")
    assert reply.status_code == 503 and "The server doesn&#39;t answer" in reply.text
    assert "resumes when the server answers" in reply.text
    away.close()


def test_login_link_works_once(visit, queue: Queue):
    page = visit(None)
    token = page.app.state.site.guard.links.make()
    reply = page.get("/?x=1", follow_redirects=False)
    assert reply.headers["location"] == "/login?next=%2F%3Fx%3D1"
    assert "Log in" in page.get(f"/login?token={token}").text
    reply = page.post("/login", data={"token": token, "next": "/?x=1"}, follow_redirects=False)
    assert (reply.status_code, reply.headers["location"]) == (303, "/?x=1")
    assert page.get("/", follow_redirects=False).status_code == 200
    assert page.post("/login", data={"token": token}).status_code == 403


def test_prefix_is_in_every_path(visit):
    page = visit(prefix="/ops/jobq")
    text = page.get("/ops/jobq/").text
    assert set(re.findall(r'(?:href|src|action)="(/[^/"]*/[^/"]*)', text)) == {"/ops/jobq"}
    link = re.findall(r'href="(/[^"]+\.css)"', text)[0]
    assert page.get(link).status_code == 200


def test_role_decides(visit):
    assert visit(UserRole.READ).get("/").status_code == 200
    assert visit(None).get("/", follow_redirects=False).status_code == 303


def test_times_are_in_the_zone_of_the_browser(visit):
    page = visit()
    page.cookies.set("jobq_zone", "Europe%2FBerlin")
    assert "Times are in Europe/Berlin" in page.get("/").text
    for hostile in ("../../etc/passwd", "x" * 9000, "%00", ""):
        page.cookies.set("jobq_zone", hostile)
        assert "Times are in UTC" in page.get("/").text
    page.post("/view", data={"zone": "utc"})
    page.cookies.set("jobq_zone", "Europe%2FBerlin")
    assert "Times are in UTC" in page.get("/").text
