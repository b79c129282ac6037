"""Damage is never silent: thousands of seeded mutations, each reported or harmless.

Each trial damages one shard of two and reads both with a handler that steps over errors. ``layout.flaw``, written apart
from the reader, says whether the damaged bytes are still a whole archive. Then

* bytes that are no archive: an error names the shard (a warning, where only the end mark is missing), every sample
  delivered is one of the originals, unchanged, in order, and the next shard is whole;
* bytes that are an archive: nothing can be reported, and what may differ is listed (``IMITATIONS``).

A failing trial prints the seed and the place; ``damage.OPERATORS[name](archive, seed)`` makes it again.
"""

import io
import os
import tarfile
import warnings
from collections import Counter

import pytest

import webdataset as wds
from webdataset import tariterators
from webdataset.core.errors import BadHeader, FormatError, TarError, Truncated
from webdataset.testing import archives, damage
from webdataset.testing.damage import flaw

pytestmark = pytest.mark.limited(cpu_seconds=280)

TRIALS = int(os.environ.get("DAMAGE_TRIALS", "1000"))
SAMPLES = archives.samples(9, seed=1)
OTHERS = archives.samples(3, seed=2)


def by_gnu_long_names(members):
    """Every name in an L record."""
    return archives.archive(*(archives.long_name(b"long/" + name.encode(), payload) for name, payload in members))


def by_pax_paths(members):
    """Every name in an extended header, as tarfile writes it for names that are not ASCII."""
    return archives.archive(*(archives.pax_member(b"long/" + name.encode(), payload) for name, payload in members))


SHARDS = {
    "ustar": (archives.by_hand(archives.members_of(SAMPLES)), ""),
    "padded": (archives.by_tarfile(archives.members_of(SAMPLES), format="ustar"), ""),
    "mtime": (archives.by_tarfile(archives.members_of(SAMPLES), format="pax", mtime=1.5), ""),
    "gnu": (by_gnu_long_names(archives.members_of(SAMPLES)), "long/"),
    "pax": (by_pax_paths(archives.members_of(SAMPLES)), "long/"),
}
NEXT = archives.by_hand(archives.members_of(OTHERS))

# damage that makes another whole archive, so that no reader can know; what it does to the samples
IMITATIONS = {
    "flip_header_bit": "a blank for a leading zero, or another byte behind the number: the same header",
    "flip_payload_bit": "payloads have no checksum",
    "zero_block": "payloads have no checksum",
    "delete_block": "the last payload's last block, replaced by the first block of the end mark",
    "cut": "inside the end mark, behind its first block",
}


def expected(samples, prefix=""):
    """Samples as the reader should give them, without metadata."""
    return [{"__key__": prefix + key, **fields} for key, fields in samples]


def plain(sample):
    """A sample without its metadata but the key."""
    return {name: value for name, value in sample.items() if name == "__key__" or not name.startswith("__")}


class Reports(list):
    """A handler that keeps every error and goes on."""

    def __call__(self, error):
        self.append(error)
        return True


def read_streams(data, folder):
    """Read both shards as streams, through the functions that third parties compose."""
    reports = Reports()
    shards = [
        {"url": "damaged.tar", "stream": io.BytesIO(data)},
        {"url": "next.tar", "stream": io.BytesIO(NEXT)},
    ]
    members = tariterators.tar_file_expander(iter(shards), handler=reports)
    return list(tariterators.group_by_keys(members, handler=reports)), reports


def read_dataset(data, folder):
    """Read both shards as files, through WebDataset."""
    reports = Reports()
    (folder / "damaged.tar").write_bytes(data)
    (folder / "next.tar").write_bytes(NEXT)
    urls = [str(folder / "damaged.tar"), str(folder / "next.tar")]
    dataset = wds.WebDataset(urls, shardshuffle=False, handler=reports, empty_check=False)
    return list(dataset), reports


def trial(read, data, folder):
    """Read damaged bytes and the shard after them.

    Returns:
        The damaged shard's samples, the other's, errors, and warnings.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples, reports = read(data, folder)
    first = [plain(sample) for sample in samples if sample["__url__"].endswith("damaged.tar")]
    second = [plain(sample) for sample in samples if sample["__url__"].endswith("next.tar")]
    assert len(first) + len(second) == len(samples)
    return first, second, reports, [str(warning.message) for warning in caught]


READERS = [read_streams, read_dataset]


@pytest.fixture
def folder(memory_folder):
    """A folder in memory: thousands of shards are written to it."""
    return memory_folder


def in_order(first, whole, *, last_may_lack_fields=False):
    """Tell whether these are the first of the originals, unchanged."""
    if last_may_lack_fields and first and len(first) <= len(whole):
        last = whole[len(first) - 1]
        return whole[: len(first) - 1] == first[:-1] and first[-1].items() <= last.items()
    return whole[: len(first)] == first


def complaint(damaged, whole, outcome):
    """Say what is wrong with how the reader took damaged bytes, or None."""
    first, second, reports, warned = outcome
    reason = flaw(damaged)
    if second != expected(OTHERS):
        return "the next shard is not whole"
    if reason is None:
        return "a false alarm" if reports or warned else None if len(first) == len(whole) else "samples vanished"
    if reason == "end":
        if len(reports) + len(warned) != 1:
            return "silent, or told twice"
        return None if in_order(first, whole, last_may_lack_fields=bool(warned)) else "changed samples"
    if not reports and not warned:
        return "silent"
    if len(reports) + len(warned) != 1:
        return "told twice"
    if not in_order(first, whole):
        return "changed samples"
    return None if warned else misplaced(reports[0])


def misplaced(error):
    """Say what an error lacks, or None."""
    if not isinstance(error, FormatError):
        return "not an error of the format"
    return None if str(error.url).endswith("damaged.tar") and error.offset is not None else "an error without its place"


@pytest.mark.slow
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", damage.OPERATORS)
def test_no_damage_is_silent(name, read, folder):
    """1 000 trials an operator, half of them each way, over five kinds of shards: zero silent losses."""
    operator = damage.OPERATORS[name]
    unseen, complaints = Counter(), []
    for seed in range(READERS.index(read), TRIALS, len(READERS)):
        kind = list(SHARDS)[seed // 2 % len(SHARDS)]
        archive, prefix = SHARDS[kind]
        damaged = operator(archive, seed)
        whole = expected(SAMPLES, prefix)
        outcome = trial(read, damaged.data, folder)
        wrong = complaint(damaged.data, whole, outcome)
        if wrong:
            first, _, reports, warned = outcome
            summary = f"{len(first)}/{len(whole)} samples, {reports}, {warned}"
            complaints.append(f"{name}(SHARDS[{kind!r}], {seed}): {wrong}; {damaged.description}; {summary}")
        if flaw(damaged.data) is None:
            unseen[outcome[0] == whole] += 1
    assert not complaints, f"{len(complaints)} of {TRIALS // len(READERS)}:\n" + "\n".join(complaints[:8])
    assert bool(unseen) == (name in IMITATIONS)
    if name not in ("flip_payload_bit", "zero_block", "delete_block"):
        assert not unseen[False], "samples changed, although no payload did"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("place", damage.CUTS)
def test_cuts_of_each_kind(place, read, folder):
    """A cut inside a header, payload or padding is Truncated; between members it is the end mark that is missing."""
    archive, _ = SHARDS["ustar"]
    for seed in range(60):
        damaged = damage.cut(archive, seed, place=place)
        first, second, reports, warned = trial(read, damaged.data, folder)
        assert complaint(damaged.data, expected(SAMPLES), (first, second, reports, warned)) is None, damaged.description
        if place in ("header", "payload", "padding"):
            assert [type(report) for report in reports] == [Truncated], damaged.description
            assert not warned


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_compressed_shards_show_damage_in_payloads_too(kind, folder):
    """A flipped bit anywhere in a compressed shard is reported, or it changed nothing (such as a time in a header)."""
    if kind == "zst":
        pytest.importorskip("zstandard")
    data = archives.compressed(SHARDS["padded"][0], kind)
    whole = expected(SAMPLES)
    for seed in range(400):
        damaged = damage.flip_any_bit(data, seed)
        first, second, reports, warned = trial(read_dataset, damaged.data, folder)
        summary = f"{kind} {seed}: {damaged.description}; {len(first)}/{len(whole)} samples, {reports}, {warned}"
        assert second == expected(OTHERS), summary
        assert reports or first == whole or kind == "zst", summary  # zstd's frames carry no checksum unless asked for
        assert len(reports) <= 1, summary
        assert not warned, summary


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_shards_cut_anywhere_are_reported(kind, folder):
    """A compressed shard that ends early, wherever, gives an error and no half sample."""
    data = archives.compressed(SHARDS["padded"][0], kind)
    whole = expected(SAMPLES)
    for stop in range(0, len(data), max(1, len(data) // 150)):
        first, second, reports, _ = trial(read_dataset, data[:stop], folder)
        assert second == expected(OTHERS)
        assert len(reports) == 1 or stop == 0, stop
        assert whole[: len(first)] == first, stop


@pytest.mark.parametrize("read", READERS)
def test_empty_members_make_deletion_invisible(read, folder):
    """The format's own blind spot: a lone header is a whole member, and leaving it out leaves a whole archive."""
    archive = archives.by_hand([("a.txt", b"one"), ("a.flag", b""), ("b.txt", b"two")])
    damaged = archive[:1024] + archive[1536:]
    assert flaw(damaged) is None
    first, _, reports, warned = trial(read, damaged, folder)
    assert first == [{"__key__": "a", "txt": b"one"}, {"__key__": "b", "txt": b"two"}]
    assert not reports
    assert not warned


@pytest.mark.parametrize("read", READERS)
def test_zeroed_whole_members_imitate_joined_archives(read, folder):
    """The other blind spot: two or more zero blocks with a valid header behind them are two archives joined."""
    archive = archives.by_hand([("a.txt", b"one"), ("b.txt", b"two"), ("c.txt", b"three")])
    damaged = archive[:1024] + bytes(1024) + archive[2048:]
    assert flaw(damaged) is None
    first, _, reports, _ = trial(read, damaged, folder)
    assert [sample["__key__"] for sample in first] == ["a", "c"]
    assert not reports


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("start", range(0, 9 * 512, 512))
def test_zeros_of_any_length_before_junk_are_reported(start, read, folder):
    """Zeros over a header and part of its payload are no end mark: something else than the end follows."""
    archive = archives.by_hand([("a.txt", b"x" * 5000), ("b.txt", b"two")])
    damaged = bytes(start + 512) + archive[start + 512 :]
    first, second, reports, _ = trial(read, damaged, folder)
    assert first == []
    assert second == expected(OTHERS)
    assert [type(report) for report in reports] == [BadHeader]
    assert reports[0].offset <= start + 512


@pytest.mark.parametrize("read", READERS)
def test_every_single_header_bit(read, folder):
    """All 4 096 bits of a header in the middle of a sample: an error at its offset, or the same samples."""
    members = [("a.txt", b"one"), ("a.cls", b"1"), ("b.txt", b"two")]
    archive = archives.by_hand(members)
    whole = [{"__key__": "a", "txt": b"one", "cls": b"1"}, {"__key__": "b", "txt": b"two"}]
    harmless = 0
    for bit in range(READERS.index(read), 4096, len(READERS)):
        place = 1024 + bit // 8
        data = archive[:place] + bytes([archive[place] ^ (1 << bit % 8)]) + archive[place + 1 :]
        first, second, reports, warned = trial(read, data, folder)
        assert second == expected(OTHERS)
        assert not warned
        if reports:
            assert first == [], bit
            assert isinstance(reports[0], BadHeader)
            assert reports[0].offset == 1024, bit
            assert flaw(data) == "header"
        else:
            assert first == whole, bit
            assert flaw(data) is None, bit
            harmless += 1
    assert 0 < harmless < 64  # blanks for leading zeros of the checksum, and the bytes behind its digits


def test_errors_are_those_of_the_tree():
    """Whoever catches tarfile.ReadError, ValueError or EOFError goes on catching."""
    archive, _ = SHARDS["ustar"]
    for name, seed in (("flip_header_bit", 1), ("cut", 1), ("zero_block", 2)):
        data = damage.OPERATORS[name](archive, seed).data
        if flaw(data) not in ("header", "cut"):
            continue
        shards = [{"url": "x.tar", "stream": io.BytesIO(data)}]
        with pytest.raises(tarfile.ReadError) as caught:
            list(tariterators.group_by_keys(tariterators.tar_file_expander(iter(shards))))
        assert isinstance(caught.value, (TarError, ValueError))
        assert caught.value.url == "x.tar"
        assert f"offset={caught.value.offset}" in str(caught.value)
