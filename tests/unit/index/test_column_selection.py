"""Which samples and which bytes a dataset with ``where=`` reads, with and without columns files beside its shards."""

import json
import random
import sys
import tarfile
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import webdataset as wds
from support.command import run_wds
from support.range_server import RangeServer
from support.where_rows import COLUMNS, clauses, key_of, rows, set_columns, write_rows
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import SampleError, StaleIndex, TarError
from webdataset.index import column_selection
from webdataset.storage.extents import FileExtents
from webdataset.testing import archives

pytest.importorskip("pyarrow")

SAMPLES, SIZE = 400, 19_000


def read(urls, where, **options):
    """Return the keys of the samples that are read."""
    return [sample["__key__"] for sample in wds.WebDataset(urls, where=where, shardshuffle=False, seed=1, **options)]


def write_large(folder, shards=2):
    """Write shards of samples of 20 KB, of which one in a hundred has a low score; return their names."""
    names = [f"l-{number}.tar" for number in range(shards)]
    draws = random.Random(2)
    for number, name in enumerate(names):
        with wds.TarWriter(str(folder / name)) as sink:
            for index in range(number * SAMPLES, (number + 1) * SAMPLES):
                score = (index * 37 % 100) / 100
                sink.write({"__key__": key_of(index), "json": {"score": score}, "bin": draws.randbytes(SIZE)})
        wds.write_columns(str(folder / name), "json.score")
    return names


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Shards of samples of 20 KB, with columns files."""
    folder = tmp_path_factory.mktemp("large")
    return folder, write_large(folder)


def size_of(folder, names):
    """Bytes of some files together."""
    return sum((folder / name).stat().st_size for name in names)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=40), clauses)
def test_columns_change_nothing(tmp_path, found, clause):
    """The samples with columns are those without, those of wds grep's expression, and those of plain Python."""
    shard = str(tmp_path / "s.tar")
    write_rows(Path(shard), found)
    expected = [key_of(number) for number, row in enumerate(found) if clause.holds(key_of(number), row)]
    Path(shard).with_suffix(".parquet").unlink(missing_ok=True)
    assert read(shard, clause.text, empty_check=False) == expected
    wds.write_columns(shard, COLUMNS)
    assert read(shard, clause.text, empty_check=False) == expected
    wds.write_columns(shard, ["json.lang", "len(json.lang)", "json"])
    assert read(shard, clause.text, empty_check=False) == expected


@pytest.mark.parametrize("scheme", ["file", "http", "s3"])
def test_one_percent_costs_at_most_three_percent_of_the_bytes(scheme, large, monkeypatch):
    """Of samples of 20 KB, one in a hundred selected, few bytes are read, the columns files among them."""
    folder, names = large
    expected = [key_of(index) for index in range(2 * SAMPLES) if index * 37 % 100 == 0]
    limit = 0.03 * size_of(folder, names)
    with RangeServer(folder.parent) as server:
        roots = {"http": f"{server.root}/{folder.name}", "s3": f"s3://{folder.name}", "file": str(folder)}
        options = {"storage_options": {"endpoint_url": server.root, "anonymous": True}} if scheme == "s3" else {}
        counted = []
        read_file = FileExtents.read
        monkeypatch.setattr(
            FileExtents, "read", lambda self, size: counted.append(read_file(self, size)) or counted[-1]
        )
        assert read([f"{roots[scheme]}/{name}" for name in names], "json.score < 0.01", **options) == expected
        sent = server.sent_bytes or sum(map(len, counted))
        assert SIZE * len(expected) <= sent <= limit


def test_a_shard_without_a_match_is_not_opened(large):
    """Of a shard of which nothing matches the columns file alone is requested."""
    folder, names = large
    with RangeServer(folder) as server:
        urls = [f"{server.root}/{name}" for name in names]
        where = f"json.score < 0.01 and key >= '{key_of(SAMPLES)}'"
        assert read(urls, where) == [key_of(index) for index in range(SAMPLES, 2 * SAMPLES) if index * 37 % 100 == 0]
        assert {request.path for request in server.requests} == {"/l-0.parquet", "/l-1.parquet", "/l-1.tar"}


def test_where_half_of_the_samples_match_a_shard_is_read_whole(large):
    """A selection of most samples is one request for each shard."""
    folder, names = large
    with RangeServer(folder) as server:
        assert len(read([f"{server.root}/{name}" for name in names], "json.score < 0.8")) == 2 * SAMPLES * 0.8
        shards = [request for request in server.requests if request.path.endswith(".tar")]
        assert sum(request.size for request in shards) == size_of(folder, names)
        assert len(shards) == 2


def test_an_expression_that_columns_do_not_answer_reads_shards_whole(large):
    """Nothing is excluded by what is not in the file."""
    folder, names = large
    with RangeServer(folder) as server:
        assert len(read([f"{server.root}/{names[0]}"], "json.other is None")) == SAMPLES
        assert read([f"{server.root}/{names[0]}"], "json.other == 5", empty_check=False) == []
        assert server.sent_bytes > 2 * size_of(folder, names[:1])


def test_a_part_that_is_not_known_decides_where_the_columns_do_not(large):
    """`and` after a column excludes by the column alone; the bytes decide about the rest."""
    folder, names = large
    with RangeServer(folder) as server:
        found = read([f"{server.root}/{names[0]}"], f"json.score < 0.02 and len(text('bin')) > 5 and size() > {SIZE}")
        assert found == [key_of(index) for index in range(SAMPLES) if index * 37 % 100 < 2]
        assert server.sent_bytes < 0.06 * size_of(folder, names[:1])


def test_folders_without_columns_are_asked_once(large):
    """After one shard of a folder without a columns file the others are not asked about."""
    folder, names = large
    (folder / "bare").mkdir(exist_ok=True)
    for name in names:
        (folder / "bare" / name).write_bytes((folder / name).read_bytes())
    with RangeServer(folder / "bare") as server:
        assert len(read([f"{server.root}/{name}" for name in names], "json.score < 0.01")) == 8
        assert [request.path for request in server.requests] == [
            "/l-0.parquet",
            "/l-0.wds.parquet",
            "/l-0.tar",
            "/l-1.tar",
        ]


def test_the_handler_and_the_cache_see_the_same_samples(large, tmp_path):
    """With a cache directory shards are kept whole, and the selection is the same."""
    folder, names = large
    with RangeServer(folder) as server:
        urls = [f"{server.root}/{name}" for name in names]
        assert read(urls, "json.score < 0.01", cache_dir=tmp_path) == read(urls, "json.score < 0.01")
        assert any(path.stat().st_size > 1 << 20 for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_loaders_read_ranges_in_workers(mode, large):
    """Workers of a loader, forked ones among them, read the same samples by ranges from a store."""
    folder, names = large
    with RangeServer(folder) as server:
        made = wds.WebDataset([f"{server.root}/{name}" for name in names], where="json.score < 0.02", seed=1).elastic(5)
        with wds.Loader(made, 3, workers=2, mode=mode) as loader:
            found = sorted(key for batch in loader for key in batch["__key__"])
        assert found == [key_of(index) for index in range(2 * SAMPLES) if index * 37 % 100 < 2]
        assert server.sent_bytes < 0.06 * size_of(folder, names)


def write_small(folder, count=60):
    """Write a shard of samples whose numbers stand in JSON; return its path."""
    shard = folder / "s.tar"
    write_rows(shard, [{"a": number} for number in range(count)])
    wds.write_columns(str(shard), COLUMNS)
    return shard


def test_a_shard_of_another_size_is_read_whole_with_a_warning(tmp_path):
    """A columns file of an earlier version of the shard excludes nothing."""
    shard = write_small(tmp_path)
    write_rows(shard, [{"a": number} for number in range(30, 100)])
    for number, where in {20: "json.a == 50", 68: "json.a == 98"}.items():
        with pytest.warns(UserWarning, match=r"read whole.*columns file.*write it again"):
            assert read(str(shard), where) == [key_of(number)]


def test_streams_that_share_a_stale_shard_warn_once(tmp_path):
    """What is wrong with a columns file is said once in a pass, and the streams read the shard as without."""
    shard = write_small(tmp_path)
    write_rows(shard, [{"a": number} for number in range(80)])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [sample["__key__"] for sample in wds.WebDataset(str(shard), where="json.a > 70", seed=1).elastic(8)]
    assert sorted(found) == [key_of(number) for number in range(71, 80)]
    assert len([each for each in told if "columns file" in str(each.message)]) == 1


def test_another_shard_of_the_same_size_is_an_error(tmp_path):
    """Where other samples stand at the offsets of a columns file, none of them is given: StaleIndex."""
    shard = write_small(tmp_path)
    size, samples = shard.stat().st_size, list(wds.WebDataset(str(shard), shardshuffle=False))
    with wds.TarWriter(str(shard)) as sink:
        for sample in [samples[0], *samples[:0:-1]]:  # the first header is compared before anything is read
            sink.write({name: value for name, value in sample.items() if name != "__url__"})
    assert shard.stat().st_size == size
    with pytest.raises(StaleIndex, match="wds columns"):
        read(str(shard), "json.a in (3, 59)")
    left_out = []
    assert (
        read(str(shard), "json.a == 30", handler=lambda error: left_out.append(error) or True, empty_check=False) == []
    )
    assert [type(error) for error in left_out] == [StaleIndex]


def list_members(shard):
    """Return the members of a shard, as tarfile finds them."""
    with tarfile.open(shard) as archive:
        return archive.getmembers()


def put_header(shard, member, name):
    """Give a member of a shard another name, in place."""
    content = bytearray(shard.read_bytes())
    content[member.offset : member.offset + 512] = archives.header(name.encode(), member.size)
    shard.write_bytes(content)


def test_a_local_shard_of_the_same_size_without_a_match_is_compared(tmp_path):
    """Where a columns file wants nothing of a shard whose first header is another, the shard itself is asked."""
    shard = write_small(tmp_path)
    size = shard.stat().st_size
    for member in list_members(shard)[:2]:
        put_header(shard, member, member.name.replace("0000.", "9999."))
    assert shard.stat().st_size == size
    with pytest.warns(UserWarning, match="another shard"):
        assert read(str(shard), "key == '9999'") == ["9999"]


@pytest.mark.parametrize("name", ["__x", "__x__", "__a.json", ""])
def test_fields_of_any_name_are_fields(name, tmp_path):
    """With and without columns, and for wds grep, fields are what stands in the shard, whatever they are called."""
    shard = tmp_path / "s.tar"
    shard.write_bytes(
        archives.archive(
            *(
                archives.member(f"{number:03d}.{field}".encode(), content)
                for number in range(20)
                for field, content in [("bin", bytes(2000)), *([(name, b"ab")] if number % 5 == 0 else [])]
            )
        )
    )
    for where in (f"has({name!r})", "size() == 2002", "len(fields) == 2", f"{name!r} in fields"):
        found = []
        for there in (False, True):
            if there:
                wds.write_columns(str(shard), "bin.size")
            found.append(read(str(shard), where))
            shard.with_suffix(".parquet").unlink(missing_ok=True)
        assert found == [["000", "005", "010", "015"]] * 2, where
    assert run_wds("grep", "-c", f"has({name!r})", str(shard)).stdout.strip() == b"4"


def test_streams_that_share_a_shard_count_alike_after_a_sample_that_is_stepped_over(tmp_path):
    """A shard changed in place, of which some streams want much and some little: no sample comes twice."""
    outcomes = set()
    for seed in range(20):
        draws = random.Random(seed)
        shard, rows = tmp_path / "s.tar", [{"a": draws.randrange(10)} for _ in range(24)]
        write_rows(shard, rows)
        wds.write_columns(str(shard), "json.a")
        torn = draws.randrange(1, len(rows))
        for member, field in zip(list_members(shard)[2 * torn : 2 * torn + 2], ("one", "two"), strict=True):
            # a part of the first sample now, which the handler leaves out
            put_header(shard, member, f"0000.{field}")
        errors: list[Exception] = []
        wanted = draws.choice([(3,), (1, 2, 3), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6)])
        where = f"json.a in {wanted}"
        made = wds.WebDataset(
            str(shard), where=where, seed=1, empty_check=False, handler=lambda error: errors.append(error) or True
        ).elastic(6)
        keys = [
            sample["__key__"]
            for worker in range(2)
            for _, sample in made.elastic_run(WorkerContext(0, 1, worker, 2)).positions()
        ]
        assert len(keys) == len(set(keys)), seed
        due = [key_of(number) for number, row in enumerate(rows) if row["a"] in wanted and number != torn]
        assert sorted(keys) == due or errors, seed
        outcomes.add((bool(errors), sorted(keys) == due))
    assert {(True, True), (True, False)} <= outcomes


def test_another_version_of_an_object_is_read_whole_with_a_warning(tmp_path):
    """A store tells by the ETag that an object of the same size was replaced."""
    shard = write_small(tmp_path)
    with RangeServer(tmp_path) as server:
        url = f"{server.root}/s.tar"
        wds.write_columns(url, COLUMNS, folder=tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert read(url, "json.a == 7") == [key_of(7)]
        content = bytearray(shard.read_bytes())
        place = content.index(b'{"a": 5}')
        content[place : place + 8] = b'{"a": 7}'
        shard.write_bytes(content)
        with pytest.warns(UserWarning, match="earlier version"):
            assert read(url, "json.a == 7") == [key_of(5), key_of(7)]


def test_a_damaged_columns_file_never_changes_what_is_read(tmp_path):
    """Bits that flip, bytes that are lost: the same samples, by a scan with a warning where it is noticed."""
    shard = write_small(tmp_path, 40)
    path = shard.with_suffix(".parquet")
    good, draws = path.read_bytes(), random.Random(4)
    noticed = 0
    for _ in range(120):
        content = bytearray(good)
        place = draws.randrange(len(content))
        kind = draws.choice(["flip", "cut", "zeros"])
        if kind == "flip":
            content[place] ^= 1 << draws.randrange(8)
        elif kind == "cut":
            del content[place:]
        else:
            content[place : place + 40] = bytes(len(content[place : place + 40]))
        path.write_bytes(content)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert read(str(shard), "json.a % 13 == 5") == [key_of(5), key_of(18), key_of(31)]
        noticed += bool(told)
    assert noticed > 60


@pytest.mark.parametrize("scheme", ["file", "http"])
@pytest.mark.parametrize("where", ["json.a == 7", "json.a in (2, 7, 50)"])
def test_damage_within_a_selected_sample_is_the_usual_error(where, scheme, tmp_path):
    """A header that is damaged is met as without a columns file, with its offset; the handler is asked."""
    shard = write_small(tmp_path)
    content = bytearray(shard.read_bytes())
    place = content.index(f"{key_of(7)}.json".encode())
    content[place : place + 3] = b"\xff\xff\xff"
    shard.write_bytes(content)
    with RangeServer(tmp_path) as server:
        url = f"{server.root}/s.tar" if scheme == "http" else str(shard)
        with pytest.raises(TarError) as found:
            read(url, where)
        before = read(url, where, handler=wds.ignore_and_continue, empty_check=False)
        shard.with_suffix(".parquet").unlink()
        with pytest.raises(TarError) as usual:
            read(url, where)
        assert (type(found.value), found.value.offset) == (type(usual.value), usual.value.offset)
        assert before == read(url, where, handler=wds.ignore_and_continue, empty_check=False)


def rewrite_columns(path, change):
    """Change the rows of a columns file, and keep what it says of the shard."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table, meta = parquet.read_table(path), parquet.read_metadata(path).metadata
    rows = table.to_pylist()
    change(rows)
    with parquet.ParquetWriter(path, table.schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, table.schema))
        writer.add_key_value_metadata({b"wds.columns": meta[b"wds.columns"]})


def change_field(number, **values):
    """Return a change of the first field of a row."""
    return lambda rows: rows[number]["wds_fields"][0].update(values)


@pytest.mark.parametrize("change", [
    lambda rows: rows[20].update(wds_offset=-5),
    lambda rows: rows[20].update(wds_offset=1 << 60),
    lambda rows: rows[20].update(wds_offset=rows[20]["wds_offset"] + 512),
    lambda rows: rows.__setitem__(slice(0, 60), [rows[0], *rows[:0:-1]]),
    lambda rows: [row.update(key=f"x{row['key']}") for row in rows],
    lambda rows: rows[21].update(wds_fields=[]),
    lambda rows: rows[20].update(wds_fields=[]),
    lambda rows: rows[20].update(wds_fields=None),
    change_field(21, offset=-1),
    change_field(21, offset=1 << 61),
    change_field(20, size=1 << 62),
    change_field(20, name="other"),
    change_field(20, member="elsewhere.json"),
    lambda rows: rows[20]["wds_fields"].pop(),
])  # fmt: skip
def test_a_columns_file_that_lies_gives_no_other_sample(change, tmp_path):
    """Places, keys and fields of a file that someone made up are found out: a scan, or StaleIndex."""
    shard = write_small(tmp_path)
    rewrite_columns(shard.with_suffix(".parquet"), change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = read(str(shard), "json.a == 20")
        except StaleIndex:
            found = [key_of(20)]
        assert found == [key_of(20)]


def test_a_shard_that_is_missing_is_the_usual_error(tmp_path):
    """Without a match nothing is opened; a local shard that is not there is told all the same."""
    write_small(tmp_path).unlink()
    for where in ("json.a == 5", "json.a == 500"):
        with pytest.raises(FileNotFoundError):
            read(str(tmp_path / "s.tar"), where)


def test_damage_elsewhere_is_not_seen(tmp_path):
    """What is not read is not checked: a scan meets the damage, a selection by columns does not."""
    shard = write_small(tmp_path)
    content = bytearray(shard.read_bytes())
    place = content.index(f"{key_of(30)}.json".encode())
    content[place : place + 3] = b"\xff\xff\xff"
    shard.write_bytes(content)
    assert read(str(shard), "json.a == 55") == [key_of(55)]
    shard.with_suffix(".parquet").unlink()
    with pytest.raises(TarError):
        read(str(shard), "json.a == 55")


def test_an_expression_that_fails_fails_alike(tmp_path):
    """A sample whose JSON is damaged is an error with columns as without, and is left out by a handler."""
    shard = tmp_path / "s.tar"
    with wds.TarWriter(str(shard)) as sink:
        for number in range(30):
            sink.write({"__key__": key_of(number), "json": b"{" if number == 12 else b'{"a": %d}' % number})
    for _ in range(2):
        with pytest.raises(SampleError, match="no JSON") as found:
            read(str(shard), "json.a > 20")
        assert found.value.key == key_of(12)
        left_out = []
        handler = lambda error: left_out.append(error.key) or True  # noqa: E731, B023
        assert read(str(shard), "json.a > 27", handler=handler) == [key_of(28), key_of(29)]
        assert left_out == [key_of(12)]
        (written,) = wds.write_columns(str(shard), "json.a")
        assert (written.samples, written.unclear) == (30, 1)


def test_a_state_crosses_columns_in_the_middle_of_a_shard(tmp_path):
    """What was saved while columns were used goes on without, sample by sample, and the other way."""
    shard = str(tmp_path / "s.tar")
    write_rows(Path(shard), [{"a": number % 7} for number in range(120)])
    make = lambda: wds.WebDataset(shard, where="json.a == 3", shardshuffle=False, seed=1).elastic(3)  # noqa: E731
    set_columns(shard, there=False)
    whole = [sample["__key__"] for sample in make()]
    for stop in range(1, len(whole)):
        found, state = [], None
        for there in (True, False, True):
            set_columns(shard, there=there)
            with make().elastic_run(WorkerContext(0, 1, 0, 1), state) as run:
                found += [sample["__key__"] for _, sample in zip(range(stop), run, strict=False)]
                state = json.loads(json.dumps(run.state_dict()))
        assert found == whole[: 3 * stop]


def test_without_pyarrow_shards_are_read_whole(tmp_path, monkeypatch):
    """A columns file is of no use without its library, and asked for no more."""
    write_small(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with RangeServer(tmp_path) as server:
        assert read(f"{server.root}/s.tar", "json.a == 5") == [key_of(5)]
        assert [request.path for request in server.requests] == ["/s.tar"]


def test_streams_that_share_a_shard_load_its_columns_once(tmp_path, monkeypatch):
    """The streams of one worker take turns in a shard, and its columns file is kept between them."""
    shard = str(write_small(tmp_path))
    loaded = []
    load = column_selection.load_columns
    monkeypatch.setattr(column_selection, "load_columns", lambda *call: loaded.append(call) or load(*call))
    found = [sample["__key__"] for sample in wds.WebDataset(shard, where="json.a % 9 == 0", seed=1).elastic(8)]
    assert sorted(found) == [key_of(number) for number in range(0, 60, 9)]
    assert len(loaded) == 1


def test_a_link_or_a_server_without_ranges_is_read_whole(tmp_path, monkeypatch):
    """Where a part of the shard cannot be read, all of it is read."""
    shard = str(write_small(tmp_path))
    monkeypatch.setattr(column_selection, "open_extents", lambda *_call, **_options: None)
    assert read(shard, "json.a == 5") == [key_of(5)]
