"""`report` and `compact` on a bucket in a session with Spark's UI and event log. Prints all that others can read.

Arguments: the lake, a folder for event logs, and the reports. stdin: JSON, the options with credentials.
"""

import json
import sys
import urllib.request
from pathlib import Path

import psutil

from jobq.cli import main
from jobq.pipeline import session, sessions
from tests.pipeline.conftest import KeptSession

lake, logs, reports = sys.argv[1:]
options = [
    f"--storage-option={name}={value}" for name, value in json.loads(sys.stdin.read()).items()
]
conf = {
    "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": Path(logs).as_uri(), "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false", "spark.sql.shuffle.partitions": "2",
}  # fmt: skip
spark = session("bucket", master="local[2]", memory="1g", fast=True, conf=conf)
sessions.session = lambda *_, **__: KeptSession(spark)  # type: ignore[assignment]
for given in (options, []):
    for line in (
        ["report", reports, "--since", "2026-11-20", "--until", "2026-11-23", "--json"],
        ["lake", "compact", "--engine", "spark", *([] if reports == "all" else ["--no-rollups"])],
    ):
        assert main([*line, "--lake", lake, *given]) == 0, line
context, shown = spark.sparkContext, []
url = str(context.uiWebUrl)
api = f"{url}/api/v1/applications/{context.applicationId}"
pages = [
    "environment",
    "jobs",
    "stages",
    "storage/rdd",
    "allexecutors",
    "sql?details=true&planDescription=true&length=9999",
]
number = len(json.load(urllib.request.urlopen(f"{api}/sql?details=false&length=9999")))
for page in (
    *(f"{api}/{page}" for page in pages),
    *(f"{url}/{page}/" for page in ("environment", "jobs", "stages", "SQL", "executors")),
    *(f"{url}/SQL/execution/?id={one}" for one in range(number)),
):
    with urllib.request.urlopen(page) as answer:
        shown.append(answer.read().decode())
shown += [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
shown += [str(context.getConf().getAll())]
spark.stop()
shown += [path.read_text() for path in Path(logs).iterdir() if path.is_file()]
Path(logs, "shown").write_text("\n".join(shown))
print(f"SQL {number}")
