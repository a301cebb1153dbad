"""Operations in the API: frozen messages are changed once and can be undone; a repeated request doesn't create
another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from jobq.jobs.codec import encode
from jobq.queue.queue import Queue
from jobq.queue.types import Ending
from jobq.web import UserRole
from jobq.web.api.resource import ROOT
from tests.lifecycle.conftest import until
from tests.web.api.test_api import TOKEN, is_problem, validator_of

PATH = f"{ROOT}/operations"


@pytest.fixture
def queue(client) -> Queue:
    """`low`, with 30 dead messages of two jobs."""
    low = Queue("low", client)
    for number in range(30):
        low.enqueue(encode("app.mail" if number % 3 else "app.pay"), mid=f"m{number}")
    handed = low.dequeue(30).messages
    low.finish(
        [
            Ending(mid=one.mid, token=one.token, outcome="dead", reason="Timeout: no")
            for one in handed
        ]
    )
    return low


@pytest.fixture
def caller(visit: Callable[..., TestClient]) -> Callable[[UserRole], TestClient]:
    """A program with a role."""

    def make(role: UserRole) -> TestClient:
        made = visit(role)
        made.headers.update(TOKEN)
        return made

    return make


def phase_of(api: TestClient, op: str, phase: str) -> dict[str, Any]:
    """The operation, once it is so far."""
    until(lambda: api.get(f"{PATH}/{op}").json()["phase"] == phase)
    found: dict[str, Any] = api.get(f"{PATH}/{op}").json()
    return found


def test_dead_messages_are_revived_and_that_is_undone(caller, queue):
    api = caller(UserRole.OPERATE)
    made = api.post(PATH, json={"verb": "revive", "filter": "job:app.mail"})
    assert made.status_code == 202, made.text
    op = made.json()["id"]
    preview = phase_of(api, op, "previewed")
    assert preview["number"] == 20 and preview["jobs"] == [{"name": "app.mail", "messages": 20}]
    document = api.get(f"{ROOT}/openapi.json").json()
    validator_of(document, "/operations/{operation}").validate(preview)
    assert len(queue.admin.dead()) == 30, "a preview changes nothing"
    queue.admin.purge(*(one.dead_id for one in queue.admin.dead() if one.mid == "m1"))
    assert api.post(f"{PATH}/{op}/apply", json={}).status_code == 202
    done = phase_of(api, op, "done")
    assert done["results"] == {"applied": 19, "gone": 1} and queue.admin.counts().ready == 19
    assert is_problem(api.post(f"{PATH}/{op}/apply", json={}), 400, "bad_request")
    if done["may_undo"]:
        assert api.post(f"{PATH}/{op}/undo", json={}).status_code == 202
        phase_of(api, op, "undone")
        assert queue.admin.counts().ready == 0 and len(queue.admin.dead()) == 29
    assert [one["id"] for one in api.get(PATH).json()["items"]] == [op]


def test_repeated_request_finds_what_the_first_one_made(caller, queue):
    api, key = caller(UserRole.ADMIN), {"Idempotency-Key": "order 17"}
    body = {"verb": "revive", "filter": "job:app.mail"}
    ops = {api.post(PATH, json=body, headers=key).json()["id"] for _ in range(3)}
    assert len(ops) == 1 and len(api.get(PATH).json()["items"]) == 1
    other = {"verb": "purge", "filter": "job:app.mail"}
    assert is_problem(api.post(PATH, json=other, headers=key), 409, "conflict")
    assert is_problem(
        api.post(PATH, json=body, headers={"Idempotency-Key": "x" * 201}), 400, "bad_request"
    )
    assert api.post(PATH, json=body).json()["id"] not in ops
    phase_of(api, ops.pop(), "previewed")


def test_repeated_key_with_other_messages_is_refused(caller, queue):
    api, key = caller(UserRole.ADMIN), {"Idempotency-Key": "order 18"}
    first, *more = [{"queue": "low", "id": one.dead_id} for one in queue.admin.dead()[:3]]
    body = {"verb": "purge", "ids": [first]}
    made = api.post(PATH, json=body, headers=key).json()["id"]
    assert is_problem(api.post(PATH, json=body | {"ids": more}, headers=key), 409, "conflict")
    assert api.post(PATH, json=body | {"ids": [first, first]}, headers=key).json()["id"] == made
    phase_of(api, made, "previewed")


def test_roles_and_bodies_are_checked(caller, queue):
    admin, operator = caller(UserRole.ADMIN), caller(UserRole.OPERATE)
    body = {"verb": "purge", "filter": "job:app.mail"}
    assert is_problem(caller(UserRole.READ).post(PATH, json=body), 403, "forbidden")
    assert is_problem(operator.post(PATH, json=body), 403, "forbidden")
    revive = {"verb": "revive"}
    for bad in (
        {}, [], revive, {"verb": "explode", "filter": "job:x"}, revive | {"filter": 7},
        revive | {"filter": "nokey:x"}, revive | {"ids": "x"}, revive | {"ids": []},
        revive | {"ids": [{"queue": "low"}]}, revive | {"filter": "job:x", "ids": []},
    ):  # fmt: skip
        assert is_problem(admin.post(PATH, json=bad), 400, "bad_request"), bad
    form = admin.post(
        PATH, content="verb=revive", headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert is_problem(form, 400, "bad_request")
    assert is_problem(
        admin.post(PATH, content="{", headers={"content-type": "application/json"}),
        400,
        "bad_request",
    )
    for path in (f"{PATH}/{'0' * 16}", f"{PATH}/x"):
        assert is_problem(admin.get(path), 404, "not_found")
        assert is_problem(admin.post(f"{path}/apply", json={}), 404, "not_found")
    chosen = [{"queue": "low", "id": one.dead_id} for one in queue.admin.dead()[:3]]
    op = admin.post(PATH, json={"verb": "purge", "ids": chosen}).json()["id"]
    assert phase_of(admin, op, "previewed")["number"] == 3
    wrong = admin.post(f"{PATH}/{op}/apply", json={"spread": {"x": 1}})
    assert is_problem(wrong, 400, "bad_request")
