"""moto's S3 in a process of its own: deltalake holds the interpreter while it waits for an answer."""

import sys
import threading

from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
assert threading.active_count() > 0
