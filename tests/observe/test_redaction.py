"""Redaction: secrets are hidden at every depth and in texts, and what isn't secret stays."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from jobq.client.connection import Client
from jobq.errors import ConfigError, UnavailableError
from jobq.jobs.middleware import Middlewares
from jobq.jobs.registry import Registry, job
from jobq.jobs.results import encode_result
from jobq.observe.redaction import HIDDEN, DeclaredNames, Redactor
from jobq.queue import presence
from jobq.web.contents import Contents

S3CR3T = "s3cr3t-value"


@pytest.mark.parametrize(
    "name",
    ["password", "PASSWORD", "user_passwd", "passwordHash", "secret", "clientSecret", "token", "access-token", "tokens",
     "api_key", "apiKey", "X-Api-Key", "api key", "apikey2", "Authorization", "proxy-authorization", "cookie",
     "Set-Cookie", "card", "cardNumber", "card_no", "credit_card", "creditCard", "iban", "customerIBAN", "ssn",
     "SSN", "cvv",
     "ＰＡＳＳＷＯＲＤ", "aws.secret.key", "private_key", "credentials"],
)  # fmt: skip
def test_name_of_a_secret_hides_its_value(name: str):
    shown = Redactor().tree({"a": [{name: {"b": S3CR3T}}], name: S3CR3T})
    assert shown == {"a": [{name: HIDDEN}], name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    [
        "class_name",
        "className",
        "discard",
        "cardinality",
        "dashboard",
        "to",
        "key",
        "author",
        "compass",
        "",
        "é",
    ],
)
def test_other_names_hide_nothing(name: str):
    assert Redactor().tree({name: "seen"}) == {name: "seen"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([["Authorization", S3CR3T], ["Accept", "x"]], [["Authorization", HIDDEN], ["Accept", "x"]]),
        ([{"name": "token", "value": S3CR3T}], [{"name": "token", "value": HIDDEN}]),
        ({"key": "to", "value": "seen"}, {"key": "to", "value": "seen"}),
        (f'{{"user":{{"password":"{S3CR3T}"}}}}', '{"user": {"password": "[hidden]"}}'),
        (f"redis://anna:{S3CR3T}@host:6379/0", "redis://***@host:6379/0"),
        (f"see https://a.example/?page=2&token={S3CR3T}", "see https://a.example/?page=2&token=[hidden]"),
        (f"Authorization: Bearer {S3CR3T}", "Authorization: [hidden]"),
        (f"sent Bearer {S3CR3T} twice", "sent Bearer [hidden] twice"),
        (f"a=1&password={S3CR3T}&b=2", "a=1&password=[hidden]&b=2"),
        (f"KeyError: password={S3CR3T}", "KeyError: password=[hidden]"),
        (f"a=b=password={S3CR3T}, token: '{S3CR3T}'", "a=b=password=[hidden], token: [hidden]"),
        (f"login(user='anna', passwd='{S3CR3T}')", "login(user='anna', passwd=[hidden])"),
        (f"{{'api_key': '{S3CR3T} x'}}", "{'api_key': [hidden]}"),
        ("KeyError: 'user'", "KeyError: 'user'"), ("jwt.TokenError: expired", "jwt.TokenError: expired"),
        ("at 12:30:00, x=1", "at 12:30:00, x=1"),
        (17, 17), (None, None), (True, True), (1.5, 1.5), ([[], {}], [[], {}]), ("[not json", "[not json"),
    ],
)  # fmt: skip
def test_secret_in_a_value_or_text_is_hidden(value: Any, shown: Any):
    assert Redactor().tree({"a": [value]}) == {"a": [shown]}
    assert S3CR3T not in json.dumps(Redactor().tree({"a": [value]}))


@pytest.mark.parametrize(
    "text",
    ["--password=X", "Command 'dump --password X' failed", "['dump', '--password', 'X', 'x']", "_password=X",
     "{b'password': b'X'}", r'body="{\"password\": \"X\"}"', r'"{\\\"password\\\": \\\"a\\\\\\\"X\\\"}"',
     '"password": ["a", "X"]', ' {"password": {"a": "}", "b": "X"}}', r'"password": "a\"X"', "password=u'X'",
     "Authorization: Token X", "{'Authorization': 'Token X'}", "Cookie: a=b; session=X", "token=Token(value='X')",
     "password: {'a': 'X'", "password%3DX%26a", "<soap:password a='b'>X</soap:password>", "[('password', 'X')]",
     "password => 'X'", "password := X", "-----BEGIN RSA PRIVATE KEY-----\nX\n-----END RSA PRIVATE KEY-----"],
)  # fmt: skip
def test_no_way_of_writing_a_secret_in_a_text_shows_it(text: str):
    shown = Redactor().text(f"ValueError: {text.replace('X', S3CR3T)} then, more=seen")
    assert S3CR3T not in shown
    assert HIDDEN in shown


def test_what_follows_a_secret_in_a_text_is_shown():
    text = "f(token=Token('a'), password={'a': ['b']}, to='anna') --password x --to anna <b>2</b> <token>x</token>"
    assert Redactor().text(text) == (
        "f(token=[hidden], password=[hidden], to='anna') --password [hidden] --to anna <b>2</b> <token>[hidden]</token>"
    )


def test_argument_behind_the_flag_of_a_secret_is_hidden():
    redactor = Redactor()
    assert redactor.tree(["dump", "--password", "x", "-v"]) == ["dump", "--password", HIDDEN, "-v"]
    assert redactor.tree(["--token", "-v", "x"]) == ["--token", "-v", "x"]
    assert redactor.tree({"Name": "token", "Value": "x"}) == {"Name": "token", "Value": HIDDEN}


def test_arguments_are_named_by_the_signature_of_an_imported_job():
    registry = Registry(Middlewares())

    @job(name="login", registry=registry)
    def login(user: str, password: str, *tokens: str) -> None: ...

    found = Redactor(registry=registry).call("login", ["anna", S3CR3T, S3CR3T], {"secret": S3CR3T})
    assert found == (["anna", HIDDEN, HIDDEN], {"secret": HIDDEN}, ("user", "password", "tokens"))
    assert Redactor(registry=registry).call("other", ["x"], {}).names == ("",)
    assert Redactor(registry=registry).call("login", ["anna"], {}).names == ("user",)
    assert Redactor(registry=registry).call("login", [], {}) == ([], {}, ())


def test_names_of_the_user_and_of_the_job_are_hidden_too():
    redactor = Redactor(
        ("birth*", "Zip Code"), declared=lambda name: {"a": ("to", "1"), "b": ("*",)}.get(name, ())
    )
    assert redactor.tree({"birthday": 1, "zip-code": 2, "zip code": 3, "to": 4}) == {
        "birthday": HIDDEN, "zip-code": 2, "zip code": HIDDEN, "to": 4,
    }  # fmt: skip
    assert redactor.call("a", [{"to": 1}, 2], {"to": 3}) == (
        [{"to": HIDDEN}, HIDDEN],
        {"to": HIDDEN},
        ("", ""),
    )
    assert redactor.call("b", [1], {"c": 2}) == ([HIDDEN], {"c": HIDDEN}, ("",))


@pytest.mark.parametrize("name", ["", "*", "**?", "a[bc]", "x" * 201])
def test_name_that_hides_nothing_or_everything_is_refused(name: str):
    with pytest.raises(ConfigError, match="is invalid; use 1 to 200"):
        Redactor((name,))


def test_secret_is_hidden_wherever_it_stands_in_random_data():
    chosen = random.Random(16)

    def wrap(value: Any) -> Any:
        match chosen.randrange(5):
            case 0:
                return [1, value, "x"]
            case 1:
                return {"a": value, "b": [2]}
            case 2:
                return json.dumps(value)
            case 3:
                return {"token": value}
            case _:
                return [[value]]

    for _ in range(300):
        value: Any = {"Api-Key": S3CR3T}
        for _ in range(chosen.randrange(1, 6)):
            value = wrap(value)
        assert S3CR3T not in json.dumps(Redactor().tree(value))


def test_deep_and_long_data_is_bounded():
    deep: Any = S3CR3T
    for _ in range(500):
        deep = [deep]
    assert S3CR3T not in json.dumps(Redactor().tree(deep))
    for text in (
        "a" * 300_000,
        "a=" * 150_000,
        "'" * 300_000,
        "token" * 60_000,
        "[" * 60_000,
        "a:" * 100_000 + "\n" * 9,
    ):
        assert Redactor().tree(text)


def test_what_a_job_declares_is_hidden_without_importing_it(client: Client, redis: Any) -> None:
    presence.put_redactions(client, {"pay": ["cardHolder", "1"], "all": ["*"]}, may_replace=True)
    redis.hset("jobq:redact", "broken", "\xff")
    redactor = Redactor(declared=DeclaredNames(client))

    shown = redactor.call(
        "pay", [7, "1234", {"cardHolder": "Anna", "n": 1}], {"cardholder": "Anna"}
    )

    assert shown.args == [7, HIDDEN, {"cardHolder": HIDDEN, "n": 1}]
    assert shown.kwargs == {"cardholder": HIDDEN}
    for name in ("all", "broken"):
        assert redactor.call(name, [1], {"a": 2})[:2] == ([HIDDEN], {"a": HIDDEN})
    assert redactor.call("other", [1], {"a": 2})[:2] == ([1], {"a": 2})


def test_while_nobody_knows_what_jobs_declare_all_is_hidden(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*what: object) -> None:
        raise UnavailableError("away")

    monkeypatch.setattr(presence, "every_redaction", away)
    assert Redactor(declared=DeclaredNames(client)).call("a", [1], {"b": 2})[:2] == (
        [HIDDEN], {"b": HIDDEN},
    )  # fmt: skip


def test_names_that_a_job_hides_are_hidden_in_its_texts(client: Client):
    presence.put_redactions(client, {"pay": ["holder", "0"], "quiet": ["*"]}, may_replace=True)
    contents = Contents(client, Redactor(declared=DeclaredNames(client)), arguments=True)
    text = "ValueError: holder='Ann B', city='Ulm', order 0=7 {\"holder\": \"Ann B\"} <holder>Ann B</holder> --holder Ann"  # noqa: E501
    shown = contents.error(text, "pay")
    assert "Ann" not in shown and "city='Ulm'" in shown and "order 0=7" in shown
    assert contents.error(text, "mail") == contents.error(text) == text
    assert "Ann" not in contents.text("log", "low", "m", text, job="pay")
    assert "Ulm" not in contents.text("log", "low", "m", text, job="quiet")
    assert contents.value("checkpoint", "low", "m", '{"holder": "Ann", "page": 3}', job="pay") == {
        "holder": HIDDEN,
        "page": 3,
    }
    result = encode_result({"holder": "Ann", "page": 3}, "pay", "m")
    assert contents.result("low", "pay", "m", result).value == {"holder": HIDDEN, "page": 3}
    assert contents.result(
        "low", "mail", "m", encode_result({"holder": "Ann"}, "mail", "m")
    ).value == {"holder": "Ann"}
