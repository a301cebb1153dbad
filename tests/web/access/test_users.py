"""Section 11.3: the users file and its tokens."""

from __future__ import annotations

import json
import os
import threading

import pytest

from jobq.errors import ConfigError
from jobq.web.access import passwords, users
from jobq.web.access.identity import ADMIN, NONE, OPERATE, READ, Identity, UserRole
from jobq.web.access.users import UsersFile

pytestmark = pytest.mark.usefixtures("quick_hashes")
PASSWORD = "correct horse battery"


@pytest.fixture
def path(tmp_path):
    """A users file with anna, who may operate, and bob, who has no password."""
    path = tmp_path / "users.json"
    users.add_user(path, "anna", users.new_user("operate", True, PASSWORD))
    users.add_user(path, "bob", users.new_user("read", False, None))
    return path


def test_user_is_found_by_the_password_and_by_no_other(path):
    found = UsersFile(path)
    known = found.check_password("anna", PASSWORD)
    assert known is not None
    assert known.identity == Identity("anna", OPERATE, arguments=True, via="password")
    for name, password in [
        ("anna", PASSWORD + " "), ("anna", ""), ("Anna", PASSWORD), ("bob", ""), ("bob", "None"), ("", ""),
        ("eve", PASSWORD), ("anna", PASSWORD + "x" * 5_000), ("\ud800", "\ud800"),
    ]:  # fmt: skip
        assert found.check_password(name, password) is None


def test_an_unknown_name_costs_one_hash_like_a_known_one(path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        passwords, "_scrypt", lambda *given: calls.append(given[2:]) or bytes(range(32))
    )
    found = UsersFile(path)
    for name in ("anna", "bob", "eve"):
        assert found.check_password(name, "x" * 20) is None
    assert calls == [(9,)] * 3


def test_the_file_is_closed_to_others_or_refused(path):
    assert path.stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o604, 0o660, 0o620, 0o601):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            UsersFile(path)
    path.chmod(0o600)
    again = UsersFile(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        again.user("anna")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_file_of_another_user_is_refused(path):
    os.chown(path, 12_345, -1)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        UsersFile(path)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="jobq web user add"):
        UsersFile(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory; check the path"):
        UsersFile(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match="not a regular file"):
        UsersFile(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        UsersFile(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged"), ("[]", "damaged"), ("{", "damaged"), ('{"users": {"a": {}}}', "damaged"),
        ('{"users": {"a": {"role": "root"}}}', "unknown role 'root'"),
        ('{"users": {"a b": {"role": "read"}}}', "must be 1 to 64"),
        ('{"users": {"a": {"role": "read", "password": "plain"}}}', "hash of 'a' can't be read"),
        ('{"users": {"a": {"role": "read", "passwort": "x"}}}', "damaged"),
        ('{"tokens": {"a": {"role": "x", "sha256": ""}}}', "unknown role 'x'"),
        ('{"users": {}}' + " " * users.MAX_BYTES, "larger than"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_and_lets_nobody_in(path, text, says):
    before = UsersFile(path)
    assert before.user("anna")
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        UsersFile(path)
    with pytest.raises(ConfigError, match=says):
        before.user("anna")
    with pytest.raises(ConfigError, match=says):
        users.add_user(path, "eve", users.new_user("admin", True, None))
    assert path.read_text() == text


def test_changes_are_seen_at_once_and_change_the_mark(path):
    found = UsersFile(path)
    marks = [found.user("anna").mark]
    for role, arguments, password in [
        ("read", True, PASSWORD), ("read", False, PASSWORD), ("read", False, PASSWORD + "2"),
    ]:  # fmt: skip
        users.add_user(path, "anna", users.new_user(role, arguments, password), replace=True)
        marks.append(found.user("anna").mark)
    assert len(set(marks)) == 4
    assert users.remove_user(path, "anna")
    assert not users.remove_user(path, "anna")
    assert found.user("anna") is None


def test_a_name_is_taken_once_unless_it_is_replaced(path):
    with pytest.raises(ConfigError, match="already a user 'anna'"):
        users.add_user(path, "anna", users.new_user("read", False, None))
    users.add_token(path, "ci", "read", False, None)
    with pytest.raises(ConfigError, match="already a token 'ci'"):
        users.add_token(path, "ci", "read", False, None)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\n", "x" * 65, "\x1b[2J", "a\u202eb"])
def test_bad_names_are_refused(path, name):
    with pytest.raises(ConfigError, match="must be 1 to 64"):
        users.add_user(path, name, users.new_user("read", False, None))
    with pytest.raises(ConfigError, match="must be 1 to 64"):
        users.add_token(path, name, "read", False, None)


@pytest.mark.parametrize("password", ["", "short", "x" * 1025])
def test_passwords_have_a_length(password):
    with pytest.raises(ConfigError, match="must be between 10 and 1024"):
        users.new_user("read", False, password)


def test_tokens_have_a_role_and_an_end_and_only_their_hash_is_kept(path):
    token = users.add_token(path, "grafana", "read", False, 1_000)
    endless = users.add_token(path, "ci", "operate", True, None)
    assert len(token) >= 48 and token not in path.read_text()
    found = UsersFile(path)
    assert found.check_token(token, 999.9) == Identity("grafana", READ, via="token")
    assert found.check_token(token, 1_000) is None
    assert found.check_token(endless, 1e12) == Identity("ci", OPERATE, True, "token")
    digest = json.loads(path.read_text())["tokens"]["ci"]["sha256"]
    for wrong in ("", "jobq_", token[:-1], token + "x", digest, "\udcff"):
        assert found.check_token(wrong, 0) is None
    assert users.remove_token(path, "ci")
    assert found.check_token(endless, 0) is None


def test_two_commands_at_once_lose_nothing(path):
    def add(number):
        users.add_user(path, f"user{number}", users.new_user("read", False, None))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(12)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(UsersFile(path).entries().users) == 14
    assert [one.name for one in path.parent.iterdir()] == ["users.json"]


def test_roles_include_the_lower_ones():
    for role in UserRole:
        assert [Identity("a" * bool(role), role).may(other) for other in UserRole] == [
            other <= role for other in (NONE, READ, OPERATE, ADMIN)
        ]
    assert Identity("a", "operate").role is OPERATE
    for name, role in [("", READ), ("a\n", READ), ("x" * 65, READ), ("a", "root"), ("a", "none")]:
        with pytest.raises(ConfigError):
            Identity(name, role)


def test_a_hash_costs_what_the_specification_asks():
    assert (passwords.BLOCK, passwords.PARALLEL, passwords.MAX_MEMORY) == (8, 1, 1 << 26)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "LOG2_N", 15)
        stored = passwords.hash_password(PASSWORD)
        assert stored.startswith("scrypt:15:8:1:")
        assert passwords.password_matches(PASSWORD, stored)
        assert not passwords.password_matches(PASSWORD.upper(), stored)
