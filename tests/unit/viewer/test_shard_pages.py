"""Pages of samples: the same samples as the stream reader gives, whatever the shard and wherever it lies."""

import gzip
import json

import pytest

import webdataset as wds
from support import check_corpus, reader_shapes, zoo
from support.hostile_shards import hostile_shards
from support.range_server import RangeServer
from support.view_server import serve_view
from support.view_sides import make_view
from webdataset.core.errors import WebDatasetError
from webdataset.samples.sample_reader import Reading
from webdataset.testing import archives
from webdataset.viewer import sample_routes
from webdataset.viewer.session import Session
from webdataset.viewer.shard_bytes import BlockCache
from webdataset.viewer.shard_pages import HeadersPending, ShardView

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def read_stream(url):
    """Return keys and fields of the samples that a dataset gives which steps over what is wrong."""
    found = []
    dataset = wds.WebDataset([url], shardshuffle=False, handler=wds.ignore_and_continue, empty_check=False)
    for sample in dataset:
        found.append((sample["__key__"], {name: sample[name] for name in sample if not name.startswith("__")}))
    return found


def read_pages(url, count=3, **rules):
    """Return the same of the samples that a view shows, page by page."""
    shard = ShardView(0, url, Reading(**rules), BlockCache())
    found, start = [], 0
    try:
        while True:
            page = shard.page(start, count)
            found += [(entry.key, shard.payloads(entry)) for entry in page.entries]
            start += len(page.entries)
            if page.end:
                return found, page.problem
            assert page.entries
    finally:
        shard.close()


def write_odd_shards(folder):
    """Write all odd and damaged archives of the suite; yield their names and paths."""
    for exhibit in zoo.exhibits():
        path = folder / f"zoo {exhibit.name}.tar"
        path.write_bytes(exhibit.archive)
        yield path
    for seed in range(2):
        for variant in check_corpus.variants(seed):
            for name, content in variant.files:
                if name.endswith((".json", ".idx")):
                    continue
                path = folder / f"{variant.name} {name}"
                path.write_bytes(content)
                yield path
    for name, ending, content in hostile_shards(str(folder / "marker")):
        if len(content) < 1 << 21:
            path = folder / f"hostile {name}.{ending}"
            path.write_bytes(content)
            yield path
    for name, shards in reader_shapes.shapes().items():
        (folder / name).mkdir()
        yield from reader_shapes.write(shards, folder / name)


def test_pages_hold_what_the_stream_reader_gives(tmp_path):
    """Every odd or damaged archive shows the samples that a stream of it gives, local, remote, and compressed."""
    different = []
    with RangeServer(tmp_path) as server:
        for number, path in enumerate(write_odd_shards(tmp_path)):
            packed = tmp_path / f"packed-{number}.tar.gz"
            packed.write_bytes(gzip.compress(path.read_bytes(), 1))
            plain = tmp_path / f"plain-{number}.tar"
            plain.write_bytes(path.read_bytes())
            for url in (str(path), f"{server.root}/{plain.name}", str(packed)):
                expected = read_stream(url)
                try:
                    shown, problem = read_pages(url)
                except WebDatasetError as error:
                    shown, problem = [], error
                if shown != expected:
                    different.append(
                        (
                            str(path)[-60:],
                            url.rpartition(".")[2],
                            [k for k, _ in expected],
                            [k for k, _ in shown],
                            str(problem),
                        )
                    )
    for each in different:
        print(each)
    assert not different


def test_a_far_page_is_reached_by_several_requests(tmp_path):
    """Each reads headers for its time, and comes farther; then the page is the one of a walk without limit."""
    path = tmp_path / "long.tar"
    path.write_bytes(archives.of_samples(archives.samples(3000)))
    whole = ShardView(0, str(path), Reading(), BlockCache())
    shard = ShardView(0, str(path), Reading(), BlockCache())
    known, page = [], None
    while page is None:
        try:
            page = shard.page(2990, 5, 0.0)
        except HeadersPending as pending:
            known.append(int(str(pending).split()[0]))
    assert len(known) >= 2
    assert known == sorted(set(known))
    assert page.entries == whole.page(2990, 5).entries
    # what is known needs no time
    assert shard.page(0, 5, 0.0).entries == whole.page(0, 5).entries
    shard.close()
    whole.close()


@pytest.mark.parametrize(
    ("path", "parameters"), [("samples", {"start": 2990, "count": 5}), ("sample", {"ordinal": 2994})]
)
def test_the_server_answers_before_a_far_sample_is_found(tmp_path, monkeypatch, path, parameters):
    """With 202 and how far it has come, as often as it takes; meanwhile it answers other requests."""
    monkeypatch.setattr(sample_routes, "WALK_SECONDS", 0.0)
    shard = tmp_path / "long.tar"
    shard.write_bytes(archives.of_samples(archives.samples(3000)))
    answers = []
    with serve_view(Session({"a": make_view("a", [str(shard)])})) as client:
        while not answers or answers[-1][0] == 202:
            answers.append(client.request("GET", f"/api/{path}", shard=0, **parameters))
        assert client.get("/api/samples", shard=0, start=0, count=1)["samples"]
    assert len(answers) >= 2
    assert json.loads(answers[0][1])["error"]["type"] == "HeadersPending"
    assert answers[-1][0] == 200
    found = json.loads(answers[-1][1])
    assert (found if path == "sample" else found["samples"][4])["ordinal"] == 2994


def test_says_whether_a_problem_ends_the_shard(tmp_path):
    """Damage does, a field that stands twice does not; what ends it is told before what was met first."""
    twice = archives.member(b"a.txt", b"1") * 2 + archives.member(b"b.txt", b"2")
    for name, content, words, stops, count in (
        ("twice.tar", twice + archives.END, "duplicate", False, 2),
        ("cut.tar", twice[:-512], "ends at byte", True, 1),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        found, problem = read_pages(str(path))
        assert (len(found), problem.stops) == (count, stops)
        assert words in problem.message


def test_sizes_of_local_shards_are_known_before_they_are_opened(tmp_path):
    """A file is asked for its size; a directory, a missing file and a remote shard have none."""
    path = tmp_path / "a.tar"
    path.write_bytes(archives.of_samples(archives.samples(3)))
    view = make_view("a", [str(path), str(tmp_path), str(tmp_path / "gone.tar"), "http://127.0.0.1:9/x.tar"])
    rows = view.describe(0, 4)
    assert [row["size_bytes"] for row in rows] == [path.stat().st_size, None, None, None]
    assert [row["samples"] for row in rows] == [None] * 4
