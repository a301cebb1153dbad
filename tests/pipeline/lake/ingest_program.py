"""An ingest without end, to be killed: URL LAKE local|spark. A line per batch tells that it is at work."""

import sys

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.pipeline import session
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.lake.lake import Lake

url, path, when = sys.argv[1:4]
engine = Engine(when, session=lambda: session(master="local[2]", memory="512m", fast=True))  # type: ignore[arg-type]
if when == "spark":
    engine.spark()
options = IngestOptions(max_rows=400, partition_entries=100, trim=True)
ingest = Ingest(Lake.create(path), Client(ServerSettings(url=url)), engine, options)
while True:
    print(ingest.events().rows, flush=True)
