"""An ingest without end, to be killed: URL LAKE never|always. A line per batch tells that it is at work."""

import sys

from jobq.client.connection import Client
from jobq.config import ServerSettings
from jobq.pipeline import session
from jobq.pipeline.lake.ingest import Ingest, IngestOptions
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.partitions import PartitionRunner

url, path, when = sys.argv[1:4]
runner = PartitionRunner(when, session=lambda: session(master="local[2]", memory="512m", fast=True))  # type: ignore[arg-type]
if when == "always":
    runner.spark()
options = IngestOptions(max_rows=400, partition_entries=100, trim=True)
ingest = Ingest(Lake.create(path), Client(ServerSettings(url=url)), runner, options)
while True:
    print(ingest.events().rows, flush=True)
