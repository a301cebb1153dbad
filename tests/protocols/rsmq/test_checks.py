"""What is refused, in RSMQ's order, under its names and in its words."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError, JobqError
from jobq.protocols.rsmq import Rsmq, RsmqError, errors

ID = "hochb5vvsh0123456789abcdefghijkl"
RANGE = "must be between 0 and 9999999"
SIZES = "maxsize must be between 1024 and 65536"

CASES = {
    "create: no name": (lambda r: r.create_queue(""), "missingParameter", "No qname supplied"),
    "create: None": (lambda r: r.create_queue(None), "missingParameter", "No qname supplied"),
    "create: newline": (lambda r: r.create_queue("q\n"), "invalidFormat", "Invalid qname format"),
    "create: long": (lambda r: r.create_queue("q" * 161), "invalidFormat", "Invalid qname format"),
    "create: dot": (lambda r: r.create_queue("a.b"), "invalidFormat", "Invalid qname format"),
    "create: colon": (lambda r: r.create_queue("a:b"), "invalidFormat", "Invalid qname format"),
    "create: registry": (lambda r: r.create_queue("QUEUES"), "invalidFormat", "Invalid qname format"),
    "create: vt": (lambda r: r.create_queue("n", vt=-1), "invalidValue", f"vt {RANGE}"),
    "create: vt text": (lambda r: r.create_queue("n", vt="x"), "invalidValue", f"vt {RANGE}"),
    "create: vt bool": (lambda r: r.create_queue("n", vt=True), "invalidValue", f"vt {RANGE}"),
    "create: delay": (lambda r: r.create_queue("n", delay=10_000_000), "invalidValue", f"delay {RANGE}"),
    "create: small": (lambda r: r.create_queue("n", maxsize=1023), "invalidValue", SIZES),
    "create: large": (lambda r: r.create_queue("n", maxsize=65537), "invalidValue", SIZES),
    "create: -2": (lambda r: r.create_queue("n", maxsize=-2), "invalidValue", SIZES),
    "create: name before vt": (lambda r: r.create_queue("", vt=-1), "missingParameter", "No qname supplied"),
    "create: vt before delay": (lambda r: r.create_queue("n", -1, -1), "invalidValue", f"vt {RANGE}"),
    "create: thousands of digits": (lambda r: r.create_queue("n", vt="9" * 5_000), "invalidValue", f"vt {RANGE}"),
    "create: other digits": (lambda r: r.create_queue("n", vt="\u0665"), "invalidValue", f"vt {RANGE}"),
    "send: half a pair in the name": (lambda r: r.send_message("\ud800", "x"), "invalidFormat", "Invalid qname format"),
    "move: no id": (lambda r: r.move_messages("q", "n", [("", 1)]), "missingParameter", "No id supplied"),
    "create: there": (lambda r: r.create_queue("q"), "queueExists", "Queue exists"),
    "remove: unknown": (lambda r: r.delete_queue("n"), "queueNotFound", "Queue not found"),
    "remove: registry": (lambda r: r.delete_queue("QUEUES"), "invalidFormat", "Invalid qname format"),
    "remove: no name": (lambda r: r.delete_queue(""), "missingParameter", "No qname supplied"),
    "get: unknown": (lambda r: r.get_queue_attributes("n"), "queueNotFound", "Queue not found"),
    "get: dot, unknown": (lambda r: r.get_queue_attributes("a.b"), "invalidFormat", "Invalid qname format"),
    "set: nothing": (lambda r: r.set_queue_attributes(""), "noAttributeSupplied", "No attribute was supplied"),
    "set: maxsize before delay": (lambda r: r.set_queue_attributes("q", delay=-1, maxsize=1), "invalidValue", SIZES),
    "set: unknown": (lambda r: r.set_queue_attributes("n", vt=1), "queueNotFound", "Queue not found"),
    "send: unknown first": (lambda r: r.send_message("n", 5, delay=-1), "queueNotFound", "Queue not found"),
    "send: then delay": (lambda r: r.send_message("q", 5, delay=-1), "invalidValue", f"delay {RANGE}"),
    "send: then type": (lambda r: r.send_message("q", 5), "messageNotString", "Message must be a string"),
    "send: half a pair": (lambda r: r.send_message("q", "\ud800"), "messageNotString", "Message must be a string"),
    "send: then length": (lambda r: r.send_message("q", "x" * 65537), "messageTooLong", "Message too long"),
    "send: registry": (lambda r: r.send_message("QUEUES", "x"), "invalidFormat", "Invalid qname format"),
    "receive: unknown first": (lambda r: r.receive_message("n", -1), "queueNotFound", "Queue not found"),
    "receive: then vt": (lambda r: r.receive_message("q", -1), "invalidValue", f"vt {RANGE}"),
    "pop: unknown": (lambda r: r.pop_message("n"), "queueNotFound", "Queue not found"),
    "delete: no id": (lambda r: r.delete_message("q", ""), "missingParameter", "No id supplied"),
    "delete: odd id": (lambda r: r.delete_message("q", "short"), "invalidFormat", "Invalid id format"),
    "delete: blank id": (lambda r: r.delete_message("q", "a b"), "invalidFormat", "Invalid id format"),
    "visibility: id first": (
        lambda r: r.change_message_visibility("n", "short", -1), "invalidFormat", "Invalid id format",
    ),
    "visibility: then vt": (lambda r: r.change_message_visibility("n", ID, None), "invalidValue", f"vt {RANGE}"),
    "visibility: then queue": (lambda r: r.change_message_visibility("n", ID, 1), "queueNotFound", "Queue not found"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refusal_has_the_name_and_the_words_of_rsmq_and_changes_nothing(rsmq, q, stored, case):
    call, name, text = CASES[case]
    rsmq.send_message(q, "x")
    before = stored()
    with pytest.raises(RsmqError) as refused:
        call(rsmq)
    assert (refused.value.name, str(refused.value)) == (name, text)
    assert stored() == before


def test_every_name_of_rsmq_is_raised_somewhere():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, RsmqError)
    ]
    assert len(kinds) == 9
    assert {name for _, name, _ in CASES.values()} == {kind.name for kind in kinds} - {"unkown"}
    assert str(RsmqError()) == "unkown"
    assert issubclass(RsmqError, JobqError)


def test_tree_in_the_docstring_is_that_of_the_classes():
    listed = [line.split()[-1] for line in (errors.__doc__ or "").splitlines() if "──" in line]
    assert listed == [kind.__name__ for kind in RsmqError.__subclasses__()]


@pytest.mark.parametrize("name", ["a", "A-b_9", "q" * 160, "123"])
def test_name_is_accepted_when_node_accepts_it(rsmq, name):
    assert rsmq.create_queue(name) == 1


@pytest.mark.parametrize(
    ("value", "read"), [("12abc", 12), (1.9, 1), ("7", 7), (0, 0), (9_999_999, 9_999_999)]
)
def test_numbers_are_read_as_parse_int_does(rsmq, value, read):
    rsmq.create_queue("q", vt=value)
    assert rsmq.get_queue_attributes("q").vt == read


@pytest.mark.parametrize("maxsize", [1024, 65536, -1])
def test_maxsize_is_accepted_at_its_limits(rsmq, maxsize):
    rsmq.create_queue("q", maxsize=maxsize)
    assert rsmq.get_queue_attributes("q").maxsize == maxsize


def test_empty_message_is_a_message(rsmq, q):
    rsmq.send_message(q, "")
    assert rsmq.receive_message(q).message == ""


def test_maxsize_measures_bytes_of_utf_8(rsmq):
    rsmq.create_queue("q", maxsize=1024)
    rsmq.send_message("q", "é" * 512)
    with pytest.raises(errors.MessageTooLongError):
        rsmq.send_message("q", "é" * 513)


def test_unlimited_queue_takes_any_size(rsmq):
    rsmq.create_queue("q", maxsize=-1)
    rsmq.send_message("q", "x" * 1_000_000)
    assert len(rsmq.pop_message("q").message) == 1_000_000


def test_bytes_come_back_as_they_were_and_as_node_reads_them(rsmq, q):
    rsmq.send_message(q, b"\xff\xfeA")
    message = rsmq.pop_message(q)
    assert (message.body, message.message) == (b"\xff\xfeA", "\ufffd\ufffdA")


def test_delete_message_of_an_unknown_queue_is_no_error(rsmq):
    assert rsmq.delete_message("n", ID) is False


@pytest.mark.parametrize("ns", ["", "a\nb"])
def test_namespace_is_refused_when_it_cannot_begin_a_key(client, ns):
    with pytest.raises(ConfigError, match="ns"):
        Rsmq(client, ns=ns)


@pytest.mark.parametrize("limit", [0, 1001])
def test_limit_out_of_range_is_refused(rsmq, q, limit):
    with pytest.raises(ConfigError, match="limit"):
        rsmq.receive_messages(q, limit)
    with pytest.raises(ConfigError, match="limit"):
        rsmq.peek(q, limit=limit)


def test_place_and_offset_of_peek_are_checked(rsmq, q):
    with pytest.raises(ConfigError, match="visible, hidden, all"):
        rsmq.peek(q, "anywhere")
    with pytest.raises(ConfigError, match="offset"):
        rsmq.peek(q, offset=-1)


def test_wait_that_is_none_is_refused_before_anything_is_received(rsmq, q, stored):
    rsmq.send_message(q, "x")
    before = stored()
    with pytest.raises(ConfigError, match="not a duration"):
        rsmq.receive_message(q, wait="soon")
    assert stored() == before
