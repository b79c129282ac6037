"""Writers that a forked child inherits: only the process that opened a writer completes or removes its files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import webdataset as wds

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

PROGRAM = """
import os, sys
import webdataset as wds
from webdataset.reshaping.folders import FolderWriter
from webdataset.reshaping.raw_writer import RawShardSeries
from webdataset.reshaping.creation import make_member
from webdataset.reshaping.table_writing import TableWriter, infer_columns, write_hf_folder
from webdataset.samples.raw_samples import RawSample
from webdataset.writing.documents import DocumentWriter

way, count, fork_at = sys.argv[1], 6, int(sys.argv[3])
ending = sys.argv[2]

def raw(number):
    key = f"k{number}"
    return RawSample(key, (make_member(f"{key}.txt", b"x" * 1000),), ("txt",), "here", number)

def leave():
    child = os.fork()
    if not child:
        {"exit": lambda: sys.exit(0), "raise": lambda: 1 / 0, "end": lambda: None}[ending]()
        return True
    os.waitpid(child, 0)
    return False

def samples(make):
    for number in range(count):
        if number == fork_at and leave():
            # the child ends as a program does that has no more samples
            return
        yield make(number)

def tar(number):
    return {"__key__": f"k{number}", "txt": "x" * 1000}

def write_all(sink, make):
    with sink:
        for sample in samples(make):
            sink.write(sample)

if way == "tar":
    write_all(wds.TarWriter("out-0.tar"), tar)
elif way == "gz":
    write_all(wds.TarWriter("out-0.tar.gz"), tar)
elif way == "index":
    write_all(wds.TarWriter("out-0.tar", index=("binary", "dali", "files")), tar)
elif way == "series":
    write_all(wds.ShardWriter("out-%d.tar", maxcount=2, index=("wids", "energon", "binary")), tar)
elif way == "pipe":
    write_all(wds.TarWriter("pipe:cat > out-0.tar"), tar)
elif way == "records":
    write_all(wds.RecordWriter("out-0.msgpack"), tar)
elif way == "documents":
    write_all(DocumentWriter("out-%d.tar", maxcount=2), lambda number: {
        "__key__": f"k{number}", "images": [], "text_list": ["x"], "matched_text_index": []
    })
elif way == "raw":
    write_all(RawShardSeries("out-%d.tar", max_samples=2), raw)
elif way == "table":
    columns, rest = infer_columns([raw(0)])
    write_all(TableWriter("out-%d.parquet", "parquet", columns, max_samples=2), raw)
elif way == "hf":
    columns, rest = infer_columns([raw(0)])
    write_hf_folder(samples(raw), columns, "out-hf", max_samples=2)
elif way == "folder":
    FolderWriter("out-folder").write_all(samples(raw))
"""


def _read(way: str, folder: Path) -> list[str]:
    """Return the keys of what was written."""
    if way == "table":
        parquet = pytest.importorskip("pyarrow.parquet")
        return [len(parquet.read_table(path)) * "k" for path in sorted(folder.glob("out-*.parquet"))]
    if way == "hf":
        pa = pytest.importorskip("pyarrow")
        files = sorted((folder / "out-hf").glob("*.arrow"))
        return [pa.ipc.open_stream(path.read_bytes()).read_all().num_rows * "k" for path in files]
    if way == "folder":
        return sorted(path.stem for path in (folder / "out-folder").iterdir())
    if way == "records":
        pipeline = wds.DataPipeline(wds.SimpleShardList(str(folder / "out-0.msgpack")), wds.msgpacks_to_samples())
        return [sample["__key__"] for sample in pipeline]
    shards = sorted(str(path) for path in folder.glob("out-*") if path.name.endswith((".tar", ".gz")))
    return [sample["__key__"] for sample in wds.WebDataset(shards, shardshuffle=False)]


@pytest.mark.parametrize(("ending", "fork_at"), [("exit", 0), ("exit", 4), ("raise", 3), ("end", 0), ("end", 3)])
@pytest.mark.parametrize(
    "way", ["tar", "gz", "index", "series", "pipe", "records", "documents", "raw", "table", "hf", "folder"]
)
def test_child_leaves_the_files_of_its_parent_alone(way, ending, fork_at, tmp_path):
    """Whatever way the child ends, the parent's output is whole, and nothing of the child's is there."""
    if way in ("table", "hf"):
        pytest.importorskip("pyarrow")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, way, ending, str(fork_at)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    keys = _read(way, tmp_path)
    expected = ["kk"] * 3 if way in ("table", "hf") else [f"k{number}" for number in range(6)]
    assert keys == expected, (keys, done.stderr)
    assert not [path.name for path in tmp_path.rglob("*.partial*")], done.stderr


@pytest.mark.parametrize("count", [2, 3])
def test_child_that_continues_a_series(count, tmp_path):
    """A child that writes further samples to a series of its parent is refused: both would write the next number."""
    with wds.ShardWriter(f"{tmp_path}/out-%d.tar", maxcount=2) as sink:
        for number in range(count):
            sink.write({"__key__": f"k{number}", "txt": "x"})
        # between two shards, where no TarWriter is open that would refuse
        sink.finish()
        child = os.fork()
        if not child:
            try:
                for number in range(4):
                    sink.write({"__key__": f"c{number}", "txt": "x"})
                sink.close()
            except wds.errors.UsageError as error:
                os._exit(7 if "belongs to the process" in str(error) else 8)
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        for number in range(count, 6):
            sink.write({"__key__": f"k{number}", "txt": "x"})
    shards = sorted(map(str, tmp_path.glob("out-*.tar")))
    keys = [sample["__key__"] for sample in wds.WebDataset(shards, shardshuffle=False)]
    assert keys == [f"k{number}" for number in range(6)]
