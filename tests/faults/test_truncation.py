"""Streams that end early: what is an error, what is one warning, and what is never given."""

import io
import os
import threading
import warnings

import pytest

import webdataset as wds
from webdataset import tariterators
from webdataset.core.errors import BadCompression, BadHeader, SourceError, TarError, Truncated
from webdataset.index import index_shard
from webdataset.index.formats import dali, energon, files_json
from webdataset.index.wids.dataset import ShardListDataset
from webdataset.index.wids.samples import TarMembers
from webdataset.samples.address import Address
from webdataset.samples.refetch import refetch
from webdataset.samples.sample_reader import Reading, read_samples
from webdataset.storage.open_url import open_stream
from webdataset.testing import archives
from webdataset.testing.damage import regions
from webdataset.testing.sources import FaultyStream, served

MEMBERS = [("a.txt", b"one"), ("a.cls", b"1"), ("b.txt", b"two" * 300), ("b.cls", b"2")]
WHOLE = archives.by_hand(MEMBERS)
BORDERS = [region.start for region in regions(WHOLE) if region.kind == "header" and region.start]
BETWEEN_SAMPLES = BORDERS[1]
WITHOUT_END = WHOLE[: regions(WHOLE)[-1].start]


def keys(samples):
    """Keys."""
    return [sample["__key__"] for sample in samples]


def warned(function):
    """What a function returned or raised, and the warnings it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = function()
        except (TarError, BadCompression) as error:
            outcome = error
    return outcome, [warning for warning in caught if warning.category is UserWarning]


@pytest.fixture
def shard(tmp_path):
    """A maker of local files."""

    def make(data, name="x.tar"):
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return make


@pytest.fixture
def serve(monkeypatch):
    """A maker of urls: each opens the stream it was made for."""

    def make(stream, name="x.tar"):
        monkeypatch.setitem(wds.gopen_schemes, "faulty", lambda url, mode="rb", bufsize=8192, **kw: stream)
        return f"faulty:{name}"

    return make


def read(stream, **kw):
    """Samples of an open stream, through the stage; their urls left out (a stream has none)."""
    samples = wds.tarfile_to_samples(**kw)(iter([{"url": stream}]))
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


def dataset(url, **kw):
    """One shard through the class."""
    return wds.WebDataset([url], shardshuffle=False, empty_check=False, **kw)


@pytest.mark.parametrize("stop", [*BORDERS, len(WITHOUT_END)])
@pytest.mark.parametrize("kind", [None, *archives.COMPRESSIONS])
def test_a_regular_file_without_end_mark_is_an_error(stop, kind, shard):
    """The file knows its length, and nobody knows what it lacks: Truncated, every epoch, the last sample withheld."""
    url = shard(WHOLE[:stop] if kind is None else archives.compressed(WHOLE[:stop], kind))
    failures = []
    for _ in range(2):
        found, caught = warned(lambda: keys(dataset(url, handler=lambda error: failures.append(error) or True)))
        assert found == ([] if stop <= BETWEEN_SAMPLES else ["a"])
        assert not caught
    for failure in failures:
        assert type(failure) is Truncated
        assert (failure.url, failure.offset) == (url, stop)
        assert failure.key == ("a" if stop <= BETWEEN_SAMPLES else "b")
        assert "WDS_MISSING_END=warn" in str(failure)
    assert len(failures) == 2


@pytest.mark.parametrize("stop", [*BORDERS, len(WITHOUT_END)])
@pytest.mark.parametrize("kind", [None, *archives.COMPRESSIONS])
def test_a_regular_file_without_end_mark_is_delivered_on_demand(stop, kind, shard):
    """``missing_end="warn"``: all that is there, and one warning, every epoch."""
    url = shard(WHOLE[:stop] if kind is None else archives.compressed(WHOLE[:stop], kind))
    for _ in range(2):
        found, caught = warned(lambda: keys(dataset(url, missing_end="warn")))
        assert found == (["a"] if stop <= BETWEEN_SAMPLES else ["a", "b"])
        assert len(caught) == 1
        assert url in str(caught[0].message)
        assert str(stop) in str(caught[0].message)


def ways(path):
    """Yield every way to read a shard: a name, and a function that returns the samples' keys."""
    yield "streamed", lambda: keys(dataset(path))
    yield "selected", lambda: keys(dataset(path, select_files=lambda _: True))
    yield "pipeline", lambda: keys(wds.DataPipeline(wds.SimpleShardList([path]), wds.tarfile_to_samples()))
    expanded = [wds.SimpleShardList([path]), tariterators.url_opener, tariterators.tar_file_expander]
    yield "expanded", lambda: keys(wds.DataPipeline(*expanded, tariterators.group_by_keys))
    yield "indexed", lambda: keys(wds.IndexedShard(path))
    yield "wids", lambda: keys(ShardListDataset([path], transformations=None))
    yield "members", lambda: [name for name, _ in TarMembers(path)]
    yield "loader", lambda: keys(wds.Loader(dataset(path), mode="threads"))


def test_a_cut_shard_has_one_verdict(tmp_path):
    """Whichever way a shard is read that was cut between members, it is Truncated at the same byte."""
    for stop in (BETWEEN_SAMPLES, len(WITHOUT_END)):
        path = tmp_path / f"{stop}.tar"
        path.write_bytes(WHOLE[:stop])
        for name, read_it in ways(str(path)):
            outcome, caught = warned(read_it)
            assert isinstance(outcome, Truncated), (name, outcome)
            assert outcome.offset == stop, name
            assert not caught, name
        whole = tmp_path / f"{stop}-whole.tar"
        whole.write_bytes(WHOLE[:stop] + bytes(512))
        for name, read_it in ways(str(whole)):
            outcome, caught = warned(read_it)
            assert isinstance(outcome, list), (name, outcome)
            assert not caught, name


@pytest.mark.parametrize("kind", [dali, energon, files_json], ids=lambda kind: kind.__name__.rpartition(".")[2])
def test_an_index_does_not_vouch_for_an_end(tmp_path, kind):
    """An index that was made of a cut shard, on demand, changes nothing; nor does one in memory."""
    path = tmp_path / "x.tar"
    path.write_bytes(WITHOUT_END)
    index = index_shard(path, missing_end="ignore")
    (tmp_path / "given").write_bytes(kind.dumps(index))
    for given in (index, str(tmp_path / "given")):
        outcome, _ = warned(lambda given=given: keys(wds.IndexedShard(path, given)))
        assert isinstance(outcome, Truncated)
        assert outcome.url == str(path)
        assert keys(wds.IndexedShard(path, given, missing_end="ignore")) == ["a", "b"]
    path.write_bytes(WITHOUT_END + bytes(512))
    whole = index_shard(path)
    (tmp_path / "given").write_bytes(kind.dumps(whole))
    for given in (whole, str(tmp_path / "given")):
        assert keys(wds.IndexedShard(path, given)) == ["a", "b"]


def test_a_shard_that_is_resumed_has_the_same_verdict(tmp_path):
    """Resumed in its middle, and its last sample picked out of it: Truncated, as without a stop."""
    path = tmp_path / "x.tar"
    path.write_bytes(WITHOUT_END)
    reading = Reading()
    for kind in (None, "gz"):
        path.write_bytes(WITHOUT_END if kind is None else archives.compressed(WITHOUT_END, kind))
        shards = [{"url": str(path), "stream": open_stream(path)}]
        given = []
        with pytest.raises(Truncated) as caught:
            given.extend(read_samples(shards, reading, start=Address(0, 0, 0)))
        assert keys(given) == ["a"]
        assert caught.value.offset == len(WITHOUT_END)
        shard = {"url": str(path), "stream": open_stream(path)}
        with pytest.raises(Truncated):
            list(refetch(shard, reading, [Address(0, 1, BETWEEN_SAMPLES)]))
        shard = {"url": str(path), "stream": open_stream(path)}
        found = list(refetch(shard, Reading(missing_end="ignore"), [Address(0, 1, BETWEEN_SAMPLES)]))
        assert [sample["__key__"] for _, sample in found] == ["b"]


@pytest.mark.parametrize("stop", [*BORDERS, len(WITHOUT_END)])
def test_a_stream_of_unknown_length_without_end_mark_is_an_error(stop, serve):
    """Nobody vouches for the end of a pipe: Truncated at the byte, and the sample in progress is not given."""
    url = serve(FaultyStream(WHOLE, ends_at=stop))
    given = []
    with pytest.raises(Truncated) as caught:
        given.extend(dataset(url))
    assert keys(given) == (["a"] if stop > BETWEEN_SAMPLES else [])
    assert caught.value.offset == stop
    assert caught.value.url == url
    assert caught.value.key == ("b" if stop > BETWEEN_SAMPLES else "a")


@pytest.mark.parametrize("stop", [*BORDERS, len(WITHOUT_END)])
def test_a_command_without_end_mark_is_an_error(stop, shard):
    """The same through ``pipe:``, whose exit status is 0 here."""
    url = f"pipe:head -c {stop} '{shard(WHOLE)}'"
    outcome, caught = warned(lambda: keys(dataset(url)))
    assert isinstance(outcome, Truncated)
    assert not caught


def test_a_named_pipe_is_not_a_regular_file(tmp_path):
    """A local path may name a pipe: its length is not known."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(WITHOUT_END))
    writer.start()
    outcome, caught = warned(lambda: keys(dataset(str(path))))
    writer.join()
    assert isinstance(outcome, Truncated)
    assert not caught


def test_a_verified_http_body_is_no_proof():
    """Content-Length was kept, so the server's file itself has no mark: as for a local file."""
    with served({"/x.tar": WITHOUT_END}) as root:
        outcome, caught = warned(lambda: keys(dataset(f"{root}/x.tar")))
        assert isinstance(outcome, Truncated)
        assert not caught
        found, caught = warned(lambda: keys(dataset(f"{root}/x.tar", missing_end="warn")))
    assert found == ["a", "b"]
    assert len(caught) == 1


POLICIES = {"warn": (["a", "b"], 1), "ignore": (["a", "b"], 0), "error": (Truncated, 0)}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("source", ["file", "pipe"])
def test_the_policy_decides(policy, source, shard):
    """missing_end= turns the error into a warning or silence, whether the length is known or not."""
    path = shard(WITHOUT_END)
    url = path if source == "file" else f"pipe:cat '{path}'"
    wanted, count = POLICIES[policy]
    for read in (
        lambda: keys(dataset(url, missing_end=policy)),
        lambda: keys(wds.DataPipeline(wds.SimpleShardList([url]), wds.tarfile_to_samples(missing_end=policy))),
    ):
        outcome, caught = warned(read)
        assert outcome == wanted or isinstance(outcome, Truncated) and wanted is Truncated
        assert len(caught) == count


def test_the_environment_decides_where_nobody_else_does(shard, monkeypatch):
    """WDS_MISSING_END is the policy of pipelines that name none."""
    url = shard(WITHOUT_END)
    assert isinstance(warned(lambda: keys(dataset(url)))[0], Truncated)
    monkeypatch.setenv("WDS_MISSING_END", "warn")
    found, caught = warned(lambda: keys(dataset(url)))
    assert found == ["a", "b"]
    assert len(caught) == 1
    assert warned(lambda: keys(dataset(url, missing_end="ignore"))) == (["a", "b"], [])


@pytest.mark.parametrize("zeros", [512, 1024, 1536, 10240, 512 * 4000])
@pytest.mark.parametrize("known", [True, False])
def test_one_block_of_zeros_is_an_end_mark(zeros, known):
    """One block at the very end suffices, any number is fine, and length does not matter then."""
    data = WITHOUT_END + bytes(zeros)
    stream = io.BytesIO(data) if known else FaultyStream(data)
    found, caught = warned(lambda: keys(read(stream)))
    assert found == ["a", "b"]
    assert not caught


def test_a_lone_zero_block_before_members_is_told():
    """Other programs end there without an error; here the rest is read too, with one warning."""
    for start in [0, *BORDERS]:
        data = WHOLE[:start] + bytes(512) + WHOLE[start:]
        outcome, caught = warned(lambda data=data: list(tariterators.tar_file_iterator(io.BytesIO(data))))
        assert [(item["fname"], item["data"]) for item in outcome] == MEMBERS
        (warning,) = caught
        assert f"a single zero block stands before byte {start + 512}" in str(warning.message)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_bytes_after_a_compressed_shard(kind, shard):
    """Programs ignore what follows a whole gz or bz2 stream, with one warning here; elsewhere it is an error."""
    url = shard(archives.compressed(WHOLE, kind) + b"not of it" * 1000)
    for look in (
        lambda: keys(wds.WebDataset(url, shardshuffle=False)),
        lambda: [entry.key for entry in index_shard(url).entries],
    ):
        outcome, caught = warned(look)
        if kind in ("gz", "bz2"):
            assert outcome == ["a", "b"]
            assert ["the 9000 bytes after it are ignored" in str(each.message) for each in caught] == [True]
        else:
            assert isinstance(outcome, TarError | BadCompression)


@pytest.mark.parametrize("zeros", [2, 3, 20])
def test_joined_archives_are_read_to_the_end(zeros):
    """Two or more zero blocks and a valid header: the next archive. Samples do not join over the seam's keys alone."""
    data = WITHOUT_END + bytes(512 * zeros) + archives.by_hand([("c.txt", b"3")])
    found, _ = warned(lambda: keys(read(io.BytesIO(data))))
    assert found == ["a", "b", "c"]


@pytest.mark.parametrize("zeros", [1, 2, 3, 20])
def test_zeros_before_junk_are_an_error(zeros):
    """Zeros and then something that is no header: not an end."""
    data = WITHOUT_END + bytes(512 * zeros) + b"junk" * 128 + bytes(1024)
    outcome, _ = warned(lambda: keys(read(io.BytesIO(data))))
    assert isinstance(outcome, BadHeader)


@pytest.mark.parametrize("tail", [b"x", b"x" * 511, bytes(100) + b"x"])
def test_trailing_bytes_are_an_error(tail):
    """Less than a block after the end mark, not all zeros, is no archive."""
    outcome, caught = warned(lambda: keys(read(io.BytesIO(WHOLE + tail))))
    assert isinstance(outcome, TarError)


def test_every_cut_of_a_small_archive():
    """All of them, byte by byte: whole samples only, in order, and something is said unless nothing was lost."""
    whole = read(io.BytesIO(WHOLE))
    for stop in range(len(WHOLE)):
        errors = []
        stream = FaultyStream(WHOLE, ends_at=stop)
        found = read(stream, handler=lambda error: errors.append(error) or True)
        assert found == whole[: len(found)], stop
        assert len(errors) == (stop < len(WITHOUT_END) + 512), stop
        assert all(isinstance(error, Truncated) for error in errors), stop


def test_an_error_names_the_sample_it_interrupted(shard):
    """Url, key, member and offset, as attributes and in the message; the half sample is not given."""
    url = shard(WHOLE[: BORDERS[2] + 700])
    given = []
    with pytest.raises(Truncated) as caught:
        given.extend(dataset(url))
    assert keys(given) == ["a"]
    error = caught.value
    assert (error.url, error.key, error.offset) == (url, "b", BORDERS[2] + 700)
    for text in (url, "'b'", str(BORDERS[2] + 700)):
        assert text in str(error)


def test_a_cut_member_is_named(shard):
    """The member that was cut short is the error's field."""
    stop = BETWEEN_SAMPLES + 512 + 100
    with pytest.raises(Truncated) as caught:
        list(dataset(shard(WHOLE[:stop])))
    assert caught.value.field == "b.txt"
    assert caught.value.offset == BETWEEN_SAMPLES


@pytest.mark.parametrize("handler", [wds.ignore_and_continue, wds.warn_and_continue])
def test_going_on_means_the_next_shard(handler, shard):
    """The rest of the damaged shard is skipped, the half sample too; the next shard is whole."""
    urls = [
        shard(WHOLE[: BORDERS[2] + 700], "0.tar"),
        shard(archives.by_hand([("b.cls", b"9"), ("c.txt", b"3")]), "1.tar"),
    ]
    found, caught = warned(lambda: list(wds.WebDataset(urls, shardshuffle=False, handler=handler)))
    assert keys(found) == ["a", "b", "c"]
    assert "txt" not in found[1]
    assert len(caught) == (handler is wds.warn_and_continue)


@pytest.mark.parametrize("handler", [wds.ignore_and_stop, wds.warn_and_stop])
def test_stopping_means_the_end(handler, shard):
    """No further shard is read."""
    urls = [shard(WHOLE[: BORDERS[2] + 700], "0.tar"), shard(WHOLE, "1.tar")]
    found, caught = warned(lambda: keys(wds.WebDataset(urls, shardshuffle=False, handler=handler)))
    assert found == ["a"]
    assert len(caught) == (handler is wds.warn_and_stop)


@pytest.mark.parametrize("failing", range(12))
def test_a_read_that_raises_is_located(failing, serve):
    """The n-th read fails, for all n: the source's own error, with the shard's url, and no half sample."""
    stream = FaultyStream(WHOLE, seed=3, fails_at=failing, error=ConnectionResetError("gone"))
    given = []
    with pytest.raises(ConnectionResetError, match="gone") as caught:
        given.extend(dataset(serve(stream)))
    assert keys(given) == ["a", "b"][: len(given)]
    assert all(len(sample) == 4 for sample in given)
    assert any("faulty:x.tar" in note for note in caught.value.__notes__)


def test_failing_commands_are_errors_even_after_a_whole_archive(shard):
    """An exit status that is not zero is told, though the archive looked complete."""
    url = f"pipe:cat '{shard(WHOLE)}'; exit 3"
    given = []
    with pytest.raises(SourceError, match="3"):
        given.extend(dataset(url))
    assert keys(given) in (["a"], ["a", "b"])


def test_groupers_of_others_get_no_half_sample_from_our_functions():
    """A damaged shard's last sample is dropped by group_by_keys too, though it only sees members."""
    errors = []

    def handler(error):
        errors.append(error)
        return True

    shards = [
        {"url": "0.tar", "stream": io.BytesIO(WHOLE[: BORDERS[2] + 700])},
        {"url": "1.tar", "stream": io.BytesIO(archives.by_hand([("b.cls", b"9")]))},
    ]
    members = tariterators.tar_file_expander(iter(shards), handler=handler)
    found = list(tariterators.group_by_keys(members, handler=handler))
    assert keys(found) == ["a", "b"]
    assert found[1]["cls"] == b"9"
    assert "txt" not in found[1]
    assert len(errors) == 1


def test_same_key_over_the_border_does_not_join(shard):
    """Neither where the shards are whole, nor where the first one is damaged, nor where one url comes twice."""
    first = archives.by_hand([("a.txt", b"0"), ("k.txt", b"1")])
    second = archives.by_hand([("k.cls", b"2"), ("z.txt", b"3")])
    urls = [shard(first, "0.tar"), shard(second, "1.tar")]
    assert keys(wds.WebDataset(urls, shardshuffle=False)) == ["a", "k", "k", "z"]
    broken = [shard(first[:1540], "2.tar"), urls[1]]
    found = list(wds.WebDataset(broken, shardshuffle=False, handler=wds.ignore_and_continue))
    assert keys(found) == ["a", "k", "z"]
    assert "txt" not in found[1]
    one = shard(archives.by_hand([("only.txt", b"1")]), "3.tar")
    assert keys(wds.WebDataset([one, one, one], shardshuffle=False)) == ["only"] * 3


def test_a_zeroed_header_of_a_whole_member_is_seen():
    """Each header of the archive zeroed in turn: never padding, never a silent loss."""
    for region in regions(WHOLE):
        if region.kind != "header":
            continue
        data = WHOLE[: region.start] + bytes(512) + WHOLE[region.stop :]
        outcome, _ = warned(lambda data=data: keys(read(io.BytesIO(data))))
        assert isinstance(outcome, BadHeader)
        assert outcome.offset <= region.stop


def test_a_zeroed_header_of_an_empty_member_is_told():
    """No payload behind it: the zeros stand alone between two headers, as between two archives; one warning."""
    data = archives.by_hand([("a.txt", b"1"), ("a.flag", b""), ("b.txt", b"2")])
    data = data[:1024] + bytes(512) + data[1536:]
    outcome, caught = warned(lambda: keys(read(io.BytesIO(data))))
    assert outcome == ["a", "b"]
    assert ["members were overwritten with zeros" in str(each.message) for each in caught] == [True]


def test_a_lone_zero_block_is_no_end_mark_for_what_follows():
    """Zeros somewhere inside do not count as the mark of a stream that is cut later."""
    data = WHOLE[:BETWEEN_SAMPLES] + bytes(1024) + WHOLE[BETWEEN_SAMPLES : BORDERS[2]]
    outcome, caught = warned(lambda: keys(read(FaultyStream(data))))
    assert isinstance(outcome, Truncated)


def test_zeroed_records_are_errors():
    """A long name or an extended header overwritten with zeros names nothing: not a member to step over."""
    for part in (archives.long_name(b"a.txt", b"1"), archives.pax_member(b"a.txt", b"1")):
        data = archives.archive(part[:512] + bytes(512) + part[1024:], archives.member(b"z.txt", b"2"))
        outcome, _ = warned(lambda data=data: keys(read(io.BytesIO(data))))
        assert isinstance(outcome, TarError)
