"""NVIDIA DALI's reader, on the CPU: over our indexes, without any, and our reading of the indexes that it makes."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

dali = pytest.importorskip("nvidia.dali")

import numpy as np  # noqa: E402
from nvidia.dali import fn, pipeline_def  # noqa: E402

from webdataset import ShardWriter  # noqa: E402
from webdataset.core.errors import NotRepresentable, WebDatasetError  # noqa: E402
from webdataset.index.build import index_shard  # noqa: E402
from webdataset.index.formats import dali as format_of  # noqa: E402
from webdataset.index.indexed_shard import IndexedShard  # noqa: E402

# our index is refused, and why
REFUSED = {
    "zoo empty_extension": "extension ''",
    "zoo space_in_extension": "split at blanks",
    "zoo sparse": "sparse",
    "zoo empty": "at least one sample",
}
# what DALI's own search for samples makes of shards without an index; an index of ours mends all of it
MISREAD_WITHOUT_INDEX = {
    "longest in default", "longest in pax", "longest in pax-times", "zoo pax_long", "zoo empty_extension", "zoo meta",
    "zoo no_extension", "zoo sparse", "zoo joined",
}  # fmt: skip
REFUSED_WITHOUT_INDEX = {"zoo large_numbers"}


def read(path, extensions, index=None):
    """What DALI reads: for each sample the bytes of each extension, none where it is missing."""
    places = {} if index is None else {"index_paths": [str(index)]}

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def reading():
        outputs = fn.readers.webdataset(
            paths=[str(path)], ext=extensions, missing_component_behavior="empty", case_sensitive_extensions=False,
            name="reader", **places,
        )  # fmt: skip
        return tuple(outputs) if len(extensions) > 1 else outputs

    run = reading()
    run.build()
    count = run.reader_meta("reader")["epoch_size"]
    return [[np.array(output.at(0)).tobytes() for output in run.run()] for _ in range(count)]


def expected(samples):
    """What it should read."""
    extensions = sorted({field for _, fields in samples for field in fields})
    return extensions, [[fields.get(extension, b"") for extension in extensions] for _, fields in samples]


@pytest.mark.usefixtures("ends_unmarked")
@pytest.mark.parametrize("version", format_of.VERSIONS)
def test_our_index_gives_our_samples(shard, name, version, tmp_path):
    """Over an index of ours DALI reads exactly the samples of the stream, or we refuse to write it and say why."""
    if shard.samples is None:
        with pytest.raises(WebDatasetError, match="twice|parts"):
            index_shard(shard.path)
        return
    if name in REFUSED:
        with pytest.raises(NotRepresentable, match=REFUSED[name]):
            format_of.dumps(index_shard(shard.path), version=version)
        return
    index = tmp_path / "shard.idx"
    index.write_bytes(format_of.dumps(index_shard(shard.path), version=version))
    extensions, samples = expected(shard.samples)
    assert read(shard.path, extensions, index) == samples


def test_what_we_write_is_read_without_an_index(readable, name):
    """Without an index DALI reads the same, but for the shards that it is known to misread."""
    extensions, samples = expected(readable.samples)
    if name in REFUSED_WITHOUT_INDEX:
        with pytest.raises(RuntimeError, match="Corrupted tar file"):
            read(readable.path, extensions)
        return
    assert (read(readable.path, extensions) == samples) is (name not in MISREAD_WITHOUT_INDEX)


def test_we_read_the_index_that_its_tool_makes(made, tmp_path):
    """wds2idx's index of our shards lists the components that ours lists, where names are not longer than a header."""
    tool = Path(sysconfig.get_path("scripts")) / "wds2idx"
    subprocess.run([sys.executable, tool, made.path, tmp_path / "theirs.idx"], check=True, capture_output=True)
    try:
        theirs = format_of.loads((tmp_path / "theirs.idx").read_bytes())
    except ValueError:  # a blank in a name: the tool's own reader refuses it too
        assert any(" " in key for key, _ in made.samples)
        return
    ours = format_of.loads(format_of.dumps(index_shard(made.path)))
    if len(made.samples[0][0]) < 100:
        with IndexedShard(made.path, index=tmp_path / "theirs.idx") as shard:
            assert [shard[ordinal]["bin"] for ordinal in range(3)] == [fields["bin"] for _, fields in made.samples]
    if len(made.samples[0][0]) < 100:
        theirs, ours = ([[part[:3] for part in sample] for sample in index] for index in (theirs, ours))
        assert theirs == ours


def test_what_our_writer_indexes_while_writing(shards, tmp_path):
    """DALI reads shards by the indexes that our writer makes in passing."""
    samples = shards["longest in default"].samples * 2
    with ShardWriter(str(tmp_path / "s-%02d.tar"), maxcount=4, verbose=0, encoder=False, index="dali") as sink:
        for number, (key, fields) in enumerate(samples):
            sink.write({"__key__": f"{number}/{key}", **fields})
    found = []
    for path in sorted(tmp_path.glob("*.tar")):
        found += read(path, ["bin", "seg.txt"], path.with_suffix(".idx"))
    assert found == [[fields["bin"], fields["seg.txt"]] for _, fields in samples]
