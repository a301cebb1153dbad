"""An ingest without end, to be killed: URL LAKE never|always. A line per batch tells that it is at work."""

import sys

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.pipeline import session
from jobq.pipeline.lake.ingest import Ingest
from jobq.pipeline.lake.place import Lake
from jobq.pipeline.lake.runner import Runner

url, path, when = sys.argv[1:4]
runner = Runner(when, session=lambda: session(master="local[2]", memory="512m", fast=True))  # type: ignore[arg-type]
if when == "always":
    runner.spark()
ingest = Ingest(
    Lake.create(path), Client(ServerSettings(url=url)), runner,
    max_rows=400, portion=100, trim=True,
)  # fmt: skip
while True:
    print(ingest.events().rows, flush=True)
