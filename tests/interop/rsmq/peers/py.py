"""PyRSMQ behind lines of JSON, in the words of the Node client: py.py SOCKET"""

from __future__ import annotations

import json
import sys
from typing import Any

import redis
from rsmq import RedisSMQ
from rsmq.cmd.exceptions import NoMessageInQueue, QueueAlreadyExists, QueueDoesNotExist

client = redis.Redis(unix_socket_path=sys.argv[1], decode_responses=True)
rsmq = RedisSMQ(client=client)
listeners = []
NAMES = {QueueAlreadyExists: "queueExists", QueueDoesNotExist: "queueNotFound"}
EMPTY = {"receiveMessage": {}, "popMessage": {}, "changeMessageVisibility": 0}


def fresh(options: dict[str, Any]) -> int:
    """Its scripts again: it loads them once, and tests flush them."""
    global rsmq
    rsmq = RedisSMQ(client=client)
    return 1


def listen(options: dict[str, Any]) -> int:
    listener = client.pubsub()
    listener.subscribe(f"rsmq:rt:{options['qname']}")
    while listener.get_message(timeout=60)["type"] != "subscribe":
        pass
    listeners.append(listener)
    return 1


def heard(options: dict[str, Any]) -> list[str]:
    found = []
    while len(found) < options["count"]:
        message = listeners[-1].get_message(timeout=options["wait"] / 1000)
        if message is None:
            break
        found.append(message["data"])
    return found


def unlisten(options: dict[str, Any]) -> int:
    listeners.pop().close()
    return 1


def ask(method: str, options: dict[str, Any]) -> Any:
    if method in ("fresh", "listen", "heard", "unlisten"):
        return globals()[method](options)
    result = getattr(rsmq, method)(**options).execute()
    if isinstance(result, set):
        return sorted(result)
    return int(result) if isinstance(result, bool) else result


for line in sys.stdin:
    call = json.loads(line)
    try:
        answer = {"result": ask(call["method"], call["options"])}
    except NoMessageInQueue:
        answer = {"result": EMPTY[call["method"]]}
    except Exception as error:
        answer = {
            "error": {"name": NAMES.get(type(error), type(error).__name__), "message": str(error)}
        }
    print(json.dumps({"n": call["n"], **answer}), flush=True)
