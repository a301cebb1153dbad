"""How late this machine is to wake somebody: what a measured time must be read beside."""

from __future__ import annotations

import threading
import time

EVERY_S = 0.02


class Pulse(threading.Thread):
    """Asks to be woken every 20 ms. `most_s`: how much too late it was at worst."""

    def __init__(self) -> None:
        super().__init__(name="pulse", daemon=True)
        self.most_s = 0.0
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until stopped."""
        while not self._stopped.is_set():
            asked = time.monotonic() + EVERY_S
            time.sleep(EVERY_S)
            self.most_s = max(self.most_s, time.monotonic() - asked)

    def stop(self) -> float:
        """What was measured."""
        self._stopped.set()
        self.join()
        return self.most_s
