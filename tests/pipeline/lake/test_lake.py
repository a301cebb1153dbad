"""Valid and invalid lakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.errors import ConfigError, LakeError
from jobq.pipeline.engine import Engine
from jobq.pipeline.lake import inspection, upkeep
from jobq.pipeline.lake.lake import LOCK_FILE, Lake, locked
from jobq.pipeline.lake.tables import ROLLUP, TABLES
from tests.pipeline.lake.conftest import rows

ROOT = Path(__file__).parents[3]


def test_lake_is_made_in_a_new_or_empty_folder_and_opened_again(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new/and/deep", "empty"):
        made = Lake.create(str(tmp_path / name))
        assert Lake.open(str(tmp_path / name)) == Lake.create(f"file://{tmp_path / name}") == made


def test_table_gets_the_columns_it_lacks_when_an_earlier_release_made_it(tmp_path, monkeypatch):
    lake = Lake.create(str(tmp_path))
    earlier = tuple(c for c in ROLLUP.columns if c.name not in ("expired", "evicted"))
    with monkeypatch.context() as patch:
        patch.setitem(TABLES, ROLLUP.name, ROLLUP._replace(columns=earlier))
        lake.made(ROLLUP.name)

    table = lake.made(ROLLUP.name)
    assert {field.name for field in table.schema().fields} == {c.name for c in ROLLUP.columns} | {
        "dt"
    }
    assert lake.made(ROLLUP.name).version() == table.version() == 1


@pytest.mark.parametrize("name", ["50%", "a\\b"])
def test_folder_whose_name_delta_would_read_otherwise_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="use a folder without"):
        Lake.create(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_url_of_a_folder_is_read_as_one(tmp_path):
    assert Lake.create(f"file://{tmp_path}/my%20lake").store.uri == str(tmp_path / "my lake")


def test_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(LakeError, match=r"is not a lake and not empty \(it has photo.jpg\)"):
        Lake.create(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_folder_without_a_lake_is_not_opened(tmp_path):
    with pytest.raises(LakeError, match=r"create it with `jobq lake ingest --lake "):
        Lake.open(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("text", "told"),
    [('{"version": 2}', "version 2, but this jobq reads 1; upgrade"),
     ("", "can't be read"), ("[]", "can't be read")],
)  # fmt: skip
def test_marker_of_another_version_or_none_is_refused(tmp_path, text, told):
    (tmp_path / "_jobq.json").write_text(text)
    for take in (Lake.open, Lake.create):
        with pytest.raises(LakeError, match=told):
            take(str(tmp_path))


def test_lake_is_named_by_its_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("JOBQ_LAKE", raising=False)
    with pytest.raises(ConfigError, match="use --lake PATH or set JOBQ_LAKE"):
        Lake.open()
    monkeypatch.setenv("JOBQ_LAKE", str(tmp_path))
    assert Lake.create().store.uri == str(tmp_path)


def test_unknown_table_is_refused_with_the_nearest_name(lake):
    with pytest.raises(ConfigError, match="did you mean 'events'"):
        lake.table("event")


def test_lock_leaves_the_file_alone_when_it_is_a_link_to_one(lake, tmp_path):
    ours = tmp_path / "ours"
    ours.write_text("kept")
    os.symlink(ours, os.path.join(lake.store.uri, LOCK_FILE))
    with pytest.raises(LakeError, match="symbolic links"), locked(lake):
        pass
    assert ours.read_text() == "kept"


def test_lock_is_refused_while_another_has_it_and_free_afterwards(lake):
    with locked(lake), pytest.raises(LakeError, match=r"another process \(pid \d+\)"):
        locked(lake).__enter__()
    with locked(lake):
        pass


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
import pyarrow as pa, pyarrow.fs as fs
from deltalake import write_deltalake
from jobq.pipeline.lake.store import is_disk_full
def by_arrow():
    with fs.LocalFileSystem().open_output_stream(sys.argv[1] + "/file") as stream:
        stream.write(bytes(10_000))
def by_deltalake():
    write_deltalake(sys.argv[1] + "/table", pa.table({"text": [str(n) * 9 for n in range(9_999)]}))
for write in (by_arrow, by_deltalake):
    try:
        write()
    except Exception as error:
        print(is_disk_full(error), is_disk_full(OSError("another")))
"""


def test_full_disk_is_told_from_other_errors_of_arrow_and_deltalake(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert told.split() == ["True", "False"] * 2


@pytest.mark.parametrize(
    ("damage", "said"),
    [("cut", "is cut off or overwritten"), ("zeros", "is cut off or overwritten"), ("empty", "is empty")],
)  # fmt: skip
def test_damaged_newest_commit_is_told_with_its_file_and_the_remedy(
    lake, ingest, write, damage, said
):
    write("low", 3)
    ingest.events()
    newest = max(Path(lake.below("events").uri, "_delta_log").glob("*.json"))
    whole = newest.read_bytes()
    cut = {"cut": whole[: len(whole) // 2], "zeros": bytes(len(whole)), "empty": b""}[damage]
    newest.write_bytes(cut)
    for refused in (lambda: list(inspection.check(lake)), ingest.events):
        with pytest.raises(LakeError) as raised:
            refused()
        words = str(raised.value)
        assert (
            words.startswith("the latest commit of the lake's table at ") and newest.name in words
        )
        assert said in words and "Restore that file from a backup" in words
    # Without a backup: the streams still have the batch.
    newest.unlink()
    assert ingest.events().rows == 3
    texts = [one.text for one in inspection.check(lake) if one.level == "note"]
    assert "1 file in no commit: dt=" in texts[0] and "their commit was lost" in texts[0]
    assert sum(row["queue"] == "low" for row in rows(lake)) == 3


def test_check_names_no_file_that_a_compaction_replaced(lake, ingest, write):
    for first in (1, 4):
        write("low", 3, first)
        ingest.events()
    assert upkeep.compact(lake, engine=Engine("local"))
    assert {one.level for one in inspection.check(lake)} == {"ok"}
