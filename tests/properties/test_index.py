"""Whatever the archive: the index is the stream's, random access gives its bytes, and formats give the index back."""

import bisect
import contextlib
import warnings

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.index.build import index_shard
from webdataset.index.formats import dali, energon, files_json
from webdataset.testing import archives, strategies

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MEMBERS = st.lists(st.tuples(strategies.member_names(), st.binary(max_size=1200)), max_size=8)
FORMATS = st.sampled_from(["gnu", "pax"])
PAYLOADS = st.one_of(st.binary(max_size=900), st.integers(0, 1600).map(bytes))
STEMS = [
    "a",
    "b",
    "a.x",
    "d/c",
    "__m__",
    "__m__/q",
    "p" * 95,
    "q" * 101,
    "r" * 90 + "/" + "s" * 120,
    "sp\u00e4ter",
    "A",
]
NAMES = st.tuples(
    st.sampled_from(STEMS), st.sampled_from(["jpg", "JPG", "seg.png", "", "x y", "cls", "__key__", "t" * 30])
).map(lambda pair: ".".join(pair).encode())


def _pieces(payload):
    """Contents with a hole, and its stored pieces."""
    return b"x" * 512 + bytes(1024) + payload, [(0, 512), (1536, len(payload))]


ODD = st.one_of(
    st.builds(lambda n, p: archives.member(n[:100], p), NAMES, PAYLOADS),
    st.builds(lambda n, p: archives.member(n[:100], p, magic=archives.V7), NAMES, PAYLOADS),
    st.builds(archives.long_name, NAMES, PAYLOADS),
    st.builds(lambda n, p: archives.pax_member(n, p, stored_name=b"z.jpg"), NAMES, PAYLOADS),
    st.builds(lambda n, p: archives.pax_header([(b"mtime", b"1.5")]) + archives.long_name(n, p), NAMES, PAYLOADS),
    st.builds(lambda n, p, c: archives.sized_by_pax(n[:100], p, claimed=c), NAMES, PAYLOADS, st.integers(0, 600)),
    st.builds(lambda n, p: archives.member(n[:100], p, magic=archives.GNU, binary=True), NAMES, PAYLOADS),
    st.builds(lambda n, p: archives.prefixed(b"d" * 80 + b"/" + n[:99], p), NAMES, PAYLOADS),
    st.builds(lambda n, p: archives.old_gnu_sparse(n[:100], *_pieces(p)), NAMES, PAYLOADS),
    st.builds(
        lambda n, p, v: archives.pax_sparse(n, *_pieces(p), version=v),
        NAMES.map(lambda name: name[:100]), PAYLOADS, st.sampled_from(["0.0", "0.1", "1.0"]),
    ),
    st.builds(lambda n, k: archives.header(n[:100], kind=k, linkname=b"x"), NAMES, st.sampled_from([b"1", b"2", b"5"])),
    st.builds(lambda n: archives.long_name(n, b"", linkname=b"m" * 150, kind=b"2"), NAMES),
    st.just(archives.pax_header([(b"comment", b"x")], everywhere=True)),
    st.integers(1, 3).map(lambda count: bytes(512 * count)),
)  # fmt: skip
ENDS = st.sampled_from([b"", bytes(512), bytes(1024), bytes(10240), bytes(40960), b"x" * 100])
POLICIES = st.sampled_from(["first", "last", "new"])


def streamed(path, **options):
    """What the stream reader gives, or the class of its error."""
    try:
        return list(wds.WebDataset(str(path), addresses=True, empty_check=False, **options))
    except wds.WebDatasetError as error:
        return type(error)


@QUICK
@given(members=MEMBERS, form=FORMATS, duplicates=POLICIES)
def test_an_index_is_what_the_stream_delivers(tmp_path, members, form, duplicates):
    """Ordinals, keys, offsets and fields; and the bytes by random access, in any order and by key."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_tarfile(members, format=form))
    samples = streamed(path, duplicates=duplicates)
    if isinstance(samples, type):  # a member that may not be called so
        with contextlib.suppress(samples):
            index_shard(path, duplicates=duplicates)
            raise AssertionError("the index is given where the stream fails")
        return
    index = index_shard(path, duplicates=duplicates)
    assert [entry.offset for entry in index.entries] == [sample.pop("__address__").offset for sample in samples]
    with wds.IndexedShard(path, False, duplicates=duplicates) as shard:
        assert [shard[number] for number in reversed(range(len(shard)))] == samples[::-1]
        assert all(shard.by_key(sample["__key__"]) in samples for sample in samples)


@QUICK
@given(samples=strategies.samples(), form=FORMATS)
def test_formats_give_the_index_back(tmp_path, samples, form):
    """An index file that can be written opens the shard to the same samples, without the headers being walked."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_tarfile(archives.members_of(samples), format=form))
    index = index_shard(path)
    expected = [{"__key__": key, "__url__": str(path), **fields} for key, fields in samples]
    for module in (dali, energon, files_json):
        try:
            content = module.dumps(index)
        except wds.WebDatasetError:
            assert not samples
            continue
        (tmp_path / "some.index").write_bytes(content)
        with wds.IndexedShard(path, tmp_path / "some.index") as shard:
            assert list(shard) == expected


@QUICK
@given(samples=strategies.samples(), form=st.sampled_from([None, "gnu", "pax"]), data=st.data())
def test_writing_and_reading_give_one_index(tmp_path, samples, form, data):
    """The index made while writing, while reading, from headers and from the stream are one."""
    path = tmp_path / "x.tar"
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # keys with dots and the like
        with wds.TarWriter(str(path), encoder=False, index="energon", format=form) as writer:
            for key, fields in samples:
                writer.write({"__key__": key, **fields})
    observer = wds.IndexWhileReading(then=found.append)
    list(wds.WebDataset(str(path), observer=observer, empty_check=False))
    index = index_shard(path)
    assert writer.shard_index == index
    assert found == [index]
    assert index_shard(path, hashes=["md5"]).entries == index.entries


@QUICK
@given(samples=strategies.samples(), damage=st.data())
def test_damage_never_gives_wrong_bytes(tmp_path, samples, damage):
    """Behind an index made before, damage outside of payloads gives the old sample, or an error of the sample hit."""
    path = tmp_path / "x.tar"
    whole = archives.by_tarfile(archives.members_of(samples), format="pax")
    path.write_bytes(whole)
    index = index_shard(path)
    expected = [{"__key__": key, "__url__": str(path), **fields} for key, fields in samples]
    broken = bytearray(whole)
    payloads = [(f.offset, f.offset + f.size) for entry in index.entries for f in entry.fields]
    place = damage.draw(st.integers(0, len(whole) - 1).filter(lambda at: not any(a <= at < b for a, b in payloads)))
    broken[place] ^= damage.draw(st.integers(1, 255))
    path.write_bytes(broken)
    starts = [entry.offset for entry in index.entries]
    hit = bisect.bisect_right(starts, place) - 1
    with wds.IndexedShard(path, index) as shard:
        for number, sample in enumerate(expected):
            with contextlib.suppress(wds.WebDatasetError) if number == hit else contextlib.nullcontext():
                assert shard[number] == sample


def outcome(call):
    """What a call gives, and the class of its error."""
    try:
        return call(), None
    except wds.WebDatasetError as error:
        return None, type(error)


@settings(QUICK, max_examples=150)
@given(
    parts=st.lists(ODD, max_size=7),
    end=ENDS,
    duplicates=st.sampled_from(["error", "first", "last", "new"]),
    cut=st.one_of(st.just(0), st.integers(0, 3000)),
)
def test_odd_archives_have_one_verdict(tmp_path, parts, end, duplicates, cut):
    """Streamed, walked, recorded, by number, through every format: the same samples, or the same error."""
    path = tmp_path / "x.tar"
    path.write_bytes(b"".join(parts)[: -cut or None] + end)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing end marks, unusual seams
        rules = {"duplicates": duplicates}
        found = []
        observer = wds.IndexWhileReading(then=found.append)
        url = str(path)
        samples, fault = outcome(lambda: list(wds.WebDataset(url, empty_check=False, observer=observer, **rules)))
        index, refused = outcome(lambda: index_shard(path, **rules))
        assert (refused, [] if index is None else [index]) == (fault, found)
        assert outcome(lambda: index_shard(path, hashes=["md5"], **rules))[1] == fault
        if index is None:
            return
        assert list(wds.IndexedShard(path, False, **rules)) == samples
        for module in (dali, energon, files_json):
            content, _ = outcome(lambda: module.dumps(index, **({"unfit": "omit"} if module is dali else {})))  # noqa: B023
            if content is not None:
                beside = tmp_path / module.index_name("x.tar")
                beside.write_bytes(content)
                assert list(wds.IndexedShard(path, **rules)) == samples
                beside.unlink()
