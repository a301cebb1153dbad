"""A client whose calls may touch the keys that they declare, and nothing else: the server itself checks."""

from __future__ import annotations

from typing import Any

import hiredis
from redis.crc import key_slot

from jobq.client.connection import Client
from jobq.client.scripts import wire
from jobq.config import ServerSettings


class Confined(Client):
    """Sends each call of a script as a user who may touch its keys alone; plain commands as the administrator.

    channels: what scripts may publish on. one_slot: all keys of a call must be in one slot.
    """

    def __init__(self, url: str, admin: Any, *channels: str, one_slot: bool = True) -> None:
        super().__init__(ServerSettings(url=url))
        self._admin = admin
        self._user = admin.client()
        self._one_slot = one_slot
        #: Names of the scripts that ran.
        self.ran: set[str] = set()
        #: Every key that a script declared.
        self.declared: set[str] = set()
        allowed = (f"&{channel}" for channel in channels)
        admin.execute_command("ACL", "SETUSER", "confined", "on", "nopass", "+@all", *allowed)
        self._user.execute_command("AUTH", "confined", "")

    def perform(self, key: str, state: Any, by: Any = None) -> Any:
        if state.script is None:
            return self._admin.execute_command(*state.command)
        reader = hiredis.Reader()
        reader.feed(wire(state.command))
        words = reader.gets()
        keys = [word.decode() for word in words[3 : 3 + int(words[2])]]
        assert not self._one_slot or len({key_slot(one.encode()) for one in keys}) == 1
        self.declared.update(keys)
        only = [f"~{one}" for one in keys]
        self._admin.execute_command("ACL", "SETUSER", "confined", "resetkeys", *only)
        self._admin.script_load(state.script.source)
        self.ran.add(state.script.name)
        reply = self._user.execute_command(*words)
        return self.perform(key, state.as_general(), by) if state.is_left_by(reply) else reply

    def close(self) -> None:
        super().close()
        self._user.close()
        self._admin.execute_command("ACL", "DELUSER", "confined")
