"""webshart: it reads our shards by our files-JSON, and we read the ones that it makes."""

import pytest

webshart = pytest.importorskip("webshart")

from webdataset.core.errors import NotRepresentable  # noqa: E402
from webdataset.index.build import index_shard  # noqa: E402
from webdataset.index.formats import files_json  # noqa: E402
from webdataset.index.indexed_shard import IndexedShard  # noqa: E402

REFUSED = {"zoo sparse": "sparse", "zoo not_utf8": "UTF-8"}


@pytest.mark.usefixtures("ends_unmarked")
def test_our_index_gives_our_members(readable, name):
    """Every member by name and byte, or we refuse to write the index and say why."""
    if name in REFUSED:
        with pytest.raises(NotRepresentable, match=REFUSED[name]):
            files_json.dumps(index_shard(readable.path))
        return
    index = index_shard(readable.path, hashes=("sha1", "sha256"))
    readable.path.with_suffix(".json").write_bytes(files_json.dumps(index))
    found = webshart.TarDataLoader(webshart.discover_dataset(str(readable.path.parent)))
    members = {field.member for entry in index.entries for field in entry.fields}
    wanted = [member for member in readable.members() if member[0] in members] if name != "zoo joined" else None
    got = sorted((entry.path, bytes(entry.data)) for entry in found)
    assert [path for path, _ in got] == sorted(members)
    assert wanted is None or got == sorted(wanted)


def test_we_read_the_index_that_it_makes(made, tmp_path):
    """Its index of our shards lists what ours lists."""
    webshart.MetadataExtractor().extract_metadata(str(made.path.parent), str(tmp_path))
    theirs = files_json.loads((tmp_path / "shard.json").read_bytes())
    ours = files_json.loads(files_json.dumps(index_shard(made.path)))
    assert theirs.rows == ours.rows
    assert theirs.size_bytes == ours.size_bytes
    with IndexedShard(made.path, index=tmp_path / "shard.json") as shard:
        found = [shard[ordinal] for ordinal in range(len(shard))]
    assert [(sample["__key__"], sample["bin"]) for sample in found] == [(key, f["bin"]) for key, f in made.samples]
