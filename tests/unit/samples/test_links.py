"""Links and payloads of unknown types: resolved where the bytes are at hand, told of elsewhere, never lost silently."""

import gzip
import io
import os
import random
import shutil
import subprocess
import tarfile
import warnings
from typing import Any

import pytest

import webdataset as wds
from webdataset.index.build import index_shard
from webdataset.samples import links
from webdataset.samples.address import Address
from webdataset.samples.refetch import refetch
from webdataset.samples.sample_reader import Reading, read_samples
from webdataset.testing.archives import archive, header, long_name, member, old_gnu_sparse, pax_header
from webdataset.testing.sources import FaultyStream, RangeServer

JPEG = random.Random(0).randbytes(5000)


def fields(sample):
    """Return a sample's key and fields."""
    return sample["__key__"], {name: part for name, part in sample.items() if not name.startswith("__")}


def streamed(stream, **rules):
    """Return the samples of a stream with their addresses, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shards = [{"url": "x.tar", "stream": stream}]
        samples = list(read_samples(shards, Reading(addresses=True, **rules)))
    return [(sample["__address__"], *fields(sample)) for sample in samples], [str(each.message) for each in caught]


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is not installed")
@pytest.mark.parametrize("style", ["gnu", "posix", "ustar", "oldgnu"])
def test_a_folder_of_hard_linked_images(tmp_path, style):
    """What ``tar cf`` makes of two names of one image: both samples have it, streamed and at random."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.jpg").write_bytes(JPEG)
    os.link(tmp_path / "in" / "0.jpg", tmp_path / "in" / "1.jpg")
    for key in "01":
        (tmp_path / "in" / f"{key}.cls").write_bytes(key.encode())
    path = tmp_path / "x.tar"
    command = ["tar", "--sort=name", f"--format={style}", "-C", tmp_path / "in", "-cf", path, "."]
    subprocess.run(command, check=True)
    with tarfile.open(path) as made:
        assert [entry.name for entry in made if entry.islnk()] == ["./1.jpg"]
    wanted = [(f"./{key}", {"cls": key.encode(), "jpg": JPEG}) for key in "01"]
    assert [fields(sample) for sample in wds.WebDataset(str(path))] == wanted
    assert [fields(sample) for sample in wds.IndexedShard(path)] == wanted


NAMES = [b"0.a", b"0.b", b"1.a", b"1.b", b"2.a", b"d/3.a", b"none", b"4.JPG"]


def linked(name, target, style):
    """Return a hard link's headers."""
    if style == "long":
        return long_name(name, b"", linkname=target, kind=b"1")
    if style == "pax":
        return pax_header([(b"linkpath", target)]) + header(name, kind=b"1", linkname=b"other")
    return header(name, kind=b"1", linkname=target)


def shard(seed):
    """Return a shard of members and hard links between them, at random; keys stand together."""
    rng = random.Random(seed)
    parts, written = [], [b"0.x"]
    parts.append(member(b"0.x", rng.randbytes(700)))
    for number in range(rng.randrange(1, 12)):
        extensions = rng.sample([b"a", b"b", b"JPG", b"seg.png"], rng.randrange(1, 4))
        stem = rng.choice([b"%d", b"d/%d", b"l" * 120 + b"/%d"]) % number if not number % 3 else b"%d" % number
        for extension in extensions:
            name = stem + b"." + extension
            kind = rng.random()
            if kind < 0.5:
                target = rng.choice([*written, *written, b"absent.a", name])
                parts.append(linked(name, target, "long" if len(target) > 99 or len(name) > 99 else rng.choice("sp")))
            elif len(name) > 99:
                parts.append(long_name(name, rng.randbytes(900)))
            elif kind < 0.6:
                parts.append(old_gnu_sparse(name, bytes(3000) + b"end", [(3000, 3)]))
            else:
                parts.append(member(name, rng.randbytes(rng.choice([0, 10, 3000]))))
            written.append(name)
        if rng.random() < 0.2:
            parts += [member(b"blob%d" % number, rng.randbytes(600))]
            written.append(b"blob%d" % number)
    return archive(*parts)


def by_tarfile(data):
    """Return the names and bytes that extracting an archive gives, links included, absent targets left out."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for entry in tar:
            if entry.islnk():
                if entry.linkname in found and entry.linkname != entry.name:
                    found[entry.name] = found[entry.linkname]
            else:
                found[entry.name] = tar.extractfile(entry).read()
    return {name: content for name, content in found.items() if "." in name}


@pytest.mark.parametrize("hundred", range(3))
def test_the_same_sample_whichever_way(tmp_path, hundred):
    """Streamed, resumed at each sample, picked, indexed and read at random: the fields that extraction gives."""
    path = tmp_path / "x.tar"
    for seed in range(hundred * 100, hundred * 100 + 100):
        data = shard(seed)
        path.write_bytes(data)
        samples, _ = streamed(io.BytesIO(data))
        flat = {f"{key}.{ext}": content for _, key, parts in samples for ext, content in parts.items()}
        assert flat == {name.replace("JPG", "jpg"): content for name, content in by_tarfile(data).items()}, seed
        assert streamed(open(path, "rb", 0))[0] == samples, seed  # noqa: SIM115, PTH123  closed by the reader
        for number, (address, _, _) in enumerate(samples):
            again = read_samples([{"url": "x", "stream": io.BytesIO(data)}], Reading(), start=address)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert [fields(sample) for sample in again] == [each[1:] for each in samples[number:]], seed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen = [address for address, _, _ in samples[::2]]
            found = refetch({"url": "x", "stream": io.BytesIO(data)}, Reading(), chosen)
            assert [(address, *fields(sample)) for address, sample in found] == samples[::2], seed
            ways: list[dict[str, Any]] = [{}, {"rename_files": lambda name: name}]
            for rules in ways:
                assert [fields(sample) for sample in wds.IndexedShard(path, False, **rules)] == [
                    each[1:] for each in samples
                ], seed
            whole, recorded = index_shard(path), []
            assert index_shard(path, hashes=["md5"]).entries == whole.entries, seed
            list(wds.WebDataset(str(path), observer=wds.IndexWhileReading(then=recorded.append), empty_check=False))
            assert [index.entries for index in recorded] == [whole.entries], seed


@pytest.mark.parametrize("kind", ["dali", "energon", "files"])
def test_index_files_know_links(tmp_path, kind):
    """A shard with hard links, read by an index file that was written for it: the same samples."""
    data = archive(
        member(b"0.jpg", JPEG), member(b"0.cls", b"0"), linked(b"1.jpg", b"0.jpg", "s"), member(b"1.cls", b"1"),
        linked(b"2.jpg", b"1.jpg", "s"), linked(b"2.png", b"0.jpg", "s"),
    )  # fmt: skip
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    wanted = [each[1:] for each in streamed(io.BytesIO(data))[0]]
    assert [len(parts) for _, parts in wanted] == [2, 2, 2]
    wds.write_indexes([str(path)], kind)
    assert [fields(sample) for sample in wds.IndexedShard(path)] == wanted
    if kind == "dali":
        named = next(tmp_path.glob("*.idx"))
        assert [fields(sample) for sample in wds.IndexedShard(path, str(named))] == wanted


def test_front_to_back_only():
    """From a pipe, or compressed, a link has the bytes of its own sample; others are counted in one warning."""
    data = archive(
        member(b"0.jpg", JPEG), linked(b"0.thumb.jpg", b"0.jpg", "s"), linked(b"1.jpg", b"0.jpg", "s"),
        member(b"1.cls", b"1"), linked(b"2.jpg", b"0.jpg", "s"), member(b"2.cls", b"2"),
    )  # fmt: skip
    wanted = [("0", {"jpg": JPEG, "thumb.jpg": JPEG}), ("1", {"cls": b"1"}), ("2", {"cls": b"2"})]
    pipe = FaultyStream(data, seed=1)
    pipe.seekable = lambda: False
    for stream in (pipe, io.BytesIO(gzip.compress(data))):
        samples, warned = streamed(stream)
        assert [each[1:] for each in samples] == wanted
        assert len(warned) == 1
        assert "2 hard links whose target cannot be read again" in warned[0]
        assert "'1.jpg' at byte" in warned[0]


def test_what_is_left_out_is_told_of_once(tmp_path):
    """Symbolic links, links to nothing and payloads of unknown type: counted, in one warning, by reader and index."""
    parts = [header(b"%d.jpg" % n, kind=b"2", linkname=b"a.jpg") for n in range(3)]
    parts += [header(b"3.jpg", kind=b"1", linkname=b"absent"), member(b"4.jpg", b"who knows", kind=b"Z")]
    data = archive(member(b"a.jpg", b"1"), *parts, member(b"b.jpg", b"2"))
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    expected_message = (
        "1 hard links whose .*, 3 symbolic links, 1 payloads of unknown type; the first is '0.jpg' at byte 1024"
    )
    samples, warned = streamed(io.BytesIO(data))
    assert [key for _, key, _ in samples] == ["a", "b"]
    assert len(warned) == 1
    with pytest.warns(UserWarning, match=expected_message) as caught:
        assert len(index_shard(path)) == 2
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=expected_message):
        list(wds.WebDataset(str(path)))
    # given up before the end: told all the same
    with pytest.warns(UserWarning, match=expected_message):
        next(iter(wds.WebDataset(str(path))))


def test_what_nobody_misses_is_not_told_of():
    """Folders, metadata, names of no sample, what is packed twice, and what select_files leaves out."""
    data = archive(
        header(b"folder.x/", kind=b"5"), member(b"a.jpg", JPEG), linked(b"a.jpg", b"a.jpg", "s"),
        header(b"__meta__/x.jpg", kind=b"2", linkname=b"a.jpg"), header(b"latest", kind=b"2", linkname=b"a.jpg"),
        member(b"folder/", b"a.jpg\0", kind=b"D"), header(b"label", kind=b"V"), header(b"p.jpg", kind=b"6"),
    )  # fmt: skip
    samples, warned = streamed(io.BytesIO(data))
    assert [each[1:] for each in samples] == [("a", {"jpg": JPEG})]
    assert warned == []
    links_too = archive(member(b"a.jpg", JPEG), header(b"b.jpg", kind=b"2"), linked(b"c.jpg", b"absent", "s"))
    assert streamed(io.BytesIO(links_too), select_files=lambda name: name[0] == "a")[1] == []
    assert len(streamed(io.BytesIO(links_too))[1]) == 1


def test_links_before_an_error_are_told_of_once():
    """Where the next member breaks off, what was left out is counted once, and its sample is given once."""
    parts = [member(b"a.jpg", b"1"), header(b"b.jpg", kind=b"2"), linked(b"c.jpg", b"a.jpg", "s"), header(b"d.jpg", 99)]
    errors = []
    samples, warned = streamed(io.BytesIO(b"".join(parts)), handler=lambda error: errors.append(error) or True)
    assert [key for _, key, _ in samples] == ["a", "c"]
    assert len(errors) == 1
    assert [text for text in warned if ": 1 symbolic links; " in text] == warned


class Forward(io.BytesIO):
    """A file that fails where somebody goes back in it."""

    def seek(self, offset, whence=io.SEEK_SET):
        if whence == io.SEEK_SET and offset < self.tell():
            raise OSError(5, "Input/output error")
        return super().seek(offset, whence)


def test_a_link_that_cannot_be_read_is_left_out():
    """Where the source fails on the way to a link's target, the link is told of, and reading goes on."""
    middle = [part for number in range(9) for part in (member(b"%d.jpg" % number, JPEG),)]
    data = archive(member(b"a.jpg", JPEG), *middle, linked(b"b.jpg", b"a.jpg", "h"), member(b"c.jpg", b"c"))
    samples, warned = streamed(Forward(data))
    assert [key for _, key, _ in samples] == ["a", *"012345678", "c"]
    assert len(warned) == 1
    assert "1 hard links whose target cannot be read again; the first is 'b.jpg'" in warned[0]


def test_links_of_a_shard_on_a_server():
    """From a server that knows ranges a link is read again there; the samples are those of the file."""
    data = archive(
        member(b"0.jpg", JPEG), member(b"0.cls", b"0"), linked(b"1.jpg", b"0.jpg", "s"), member(b"1.cls", b"1")
    )
    with RangeServer({"/x.tar": data}) as server:
        found = list(wds.WebDataset(f"{server.root}/x.tar"))
        assert [fields(sample) for sample in wds.IndexedShard(f"{server.root}/x.tar")] == list(map(fields, found))
    assert [fields(sample) for sample in found] == [each[1:] for each in streamed(io.BytesIO(data))[0]]


def test_a_link_to_a_long_name(tmp_path):
    """PAX says the whole name of a target that the header has no room for."""
    target = "d" * 120 + "/a.jpg"
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(target)
        info.size = 7
        archive.addfile(info, io.BytesIO(b"picture"))
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, target
        archive.addfile(link)
    samples = list(wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False))
    assert [sample["jpg"] for sample in samples] == [b"picture", b"picture"]


def test_many_links_to_one_member_share_its_bytes():
    """A hundred links of 512 bytes to a large member take its memory once in a sample, and one sample at a time."""
    large = bytes(20 << 20)
    parts = [linked(b"1.%d" % n, b"0.x", "s") for n in range(100)]
    samples, _ = streamed(io.BytesIO(archive(member(b"0.x", large), *parts)))
    assert len({id(content) for content in samples[1][2].values()}) == 1
    many = archive(member(b"0.x", large), *(linked(b"%d.x" % n, b"0.x", "s") for n in range(1, 200)))
    reader = Reading().reader({"url": "x", "stream": io.BytesIO(many)})
    assert max(len(given) for given, _ in reader.lists()) == 1


def test_names_are_kept_within_bounds(monkeypatch):
    """Of more names than are kept the newest are found; a link to an older one is told of."""
    monkeypatch.setattr(links, "MOST_NAMES", 5)
    parts = [member(b"%d.x" % n, b"%d" % n) for n in range(2000)]
    data = archive(*parts, linked(b"a.x", b"1999.x", "s"), linked(b"b.x", b"3.x", "s"))
    samples, warned = streamed(io.BytesIO(data))
    assert [key for _, key, _ in samples[-2:]] == ["1999", "a"]
    assert len(warned) == 1


def test_members_for_other_groupers():
    """Readers that give members one by one resolve links, too."""
    data = archive(member(b"0.jpg", JPEG), linked(b"1.jpg", b"0.jpg", "s"))
    members = list(wds.tariterators.tar_file_iterator(io.BytesIO(data)))
    assert [(each["fname"], each["data"]) for each in members] == [("0.jpg", JPEG), ("1.jpg", JPEG)]


def test_a_link_begins_and_ends_samples():
    """A sample of a link alone is a sample, at the link's header."""
    data = archive(member(b"0.jpg", JPEG), linked(b"1.jpg", b"0.jpg", "s"), member(b"2.jpg", b"2"))
    samples, _ = streamed(io.BytesIO(data))
    assert [(address, key) for address, key, _ in samples] == [
        (Address(0, 0, 0), "0"), (Address(0, 1, 5632), "1"), (Address(0, 2, 6144), "2"),
    ]  # fmt: skip


def test_a_link_to_a_large_sparse_member():
    """It is read in pieces; where its bytes end too early, the link is left out, and told of."""
    content = random.Random(1).randbytes(900_000) + bytes(5_000_000) + b"end"
    target = old_gnu_sparse(b"0.bin", content, [(0, 900_000), (5_900_000, 3)])
    data = archive(target, member(b"1.txt", b"1"), linked(b"2.bin", b"0.bin", "h"), member(b"3.txt", b"3"))
    samples, warned = streamed(io.BytesIO(data))
    assert warned == []
    assert [key for _, key, _ in samples] == ["0", "1", "2", "3"]
    assert samples[2][2]["bin"] == samples[0][2]["bin"] == content
