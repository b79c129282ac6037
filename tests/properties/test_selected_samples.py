"""A selection by a columns file gives what a selection by a scan gives, or says why not, whatever became of the shard.

Shards of several dialects are described by a columns file and damaged, cut, lengthened or rewritten after that. What is
given without an error and a warning is what matched when the file was made; with a warning it is what a scan gives; an
error is one that a scan meets, too, or StaleIndex. No sample is given whose bytes never stood in a shard under its key.
"""

import io
import random
import shutil
import tarfile
import warnings

import pytest

import webdataset as wds
from support.odd_shards import write_shard
from webdataset.core.errors import StaleIndex
from webdataset.storage import extents

pytest.importorskip("pyarrow")

SEEDS = 150
WHERES = (
    "size() % 3 == 0",
    "has('cls') and size('bin') < 6000",
    "key.endswith('3') or key.endswith('7')",
    "len(key) % 5 == 1",
    "size('bin') > 29000",
)


@pytest.fixture(autouse=True)
def any_gap(monkeypatch):
    """Gaps of any size are left out."""
    monkeypatch.setattr(extents.FileExtents, "gap_bytes", 1)


def read(path, where):
    """Return the selected samples, the errors that a handler was asked about, and the warnings."""
    errors = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        handler = lambda error: errors.append(error) or True  # noqa: E731
        made = wds.WebDataset(str(path), where=where, shardshuffle=False, empty_check=False, handler=handler)
        found = [{name: value for name, value in sample.items() if name != "__url__"} for sample in made]
    return found, errors, [str(each.message) for each in told if "columns file" in str(each.message)]


def describe(path):
    """Write the columns file of a shard; tell whether it can have one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wds.write_columns(str(path), "size('bin'), len(key)")
        except wds.errors.FormatError:
            return False
    return True


def spoil(rng, path):
    """Change a shard that was described; return how."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(("nothing", "header", "cut", "longer", "rewritten", "swapped", "zeros"))
    if kind == "header":
        blocks = [place for place in range(0, len(content), 512) if content[place + 257 : place + 262] == b"ustar"]
        if blocks:
            content[rng.choice(blocks) + rng.randrange(0, 8)] ^= 0x55
    elif kind == "cut":
        del content[rng.randrange(len(content)) :]
    elif kind == "longer":
        content += bytes(10240)
    elif kind == "zeros":
        place = rng.randrange(0, len(content), 512)
        content[place : place + 512] = bytes(len(content[place : place + 512]))
    elif kind == "swapped":
        swap_members(rng, content)
    path.write_bytes(content)
    if kind == "rewritten":
        write_shard(rng, path, rng.randrange(100, 900))
    return kind


def swap_members(rng, content):
    """Swap two neighbouring members of a shard: samples move, and some are torn."""
    with tarfile.open(fileobj=io.BytesIO(bytes(content))) as archive:
        members = archive.getmembers()
    if len(members) < 3:
        return
    first = rng.randrange(len(members) - 2)
    one, two, after = members[first : first + 3]
    low, high, end = one.offset, two.offset, after.offset
    content[low:end] = content[high:end] + content[low:high]


@pytest.mark.repeats
def test_a_selection_by_columns_is_that_of_a_scan_or_says_so(tmp_path):
    """Random shards, random changes, several expressions: nothing is given silently that a scan would not give."""
    outcomes = set()
    for seed in range(SEEDS):
        rng = random.Random(seed)
        path, other, columns = tmp_path / "s.tar", tmp_path / "other" / "s.tar", tmp_path / "s.parquet"
        other.parent.mkdir(exist_ok=True)
        write_shard(rng, path, 3, rng.choice((1, 2, 7, 20, 40)))
        where = rng.choice(WHERES)
        columns.unlink(missing_ok=True)
        if not describe(path):
            outcomes.add("refused")
            continue
        before, failed, _ = read(path, where)
        assert not failed
        every = {sample["__key__"]: sample for sample in read(path, "True")[0]}
        kind = spoil(rng, path)
        shutil.copy(path, other)
        scanned, scan_errors, _ = read(other, where)
        found, errors, told = read(path, where)
        now = {sample["__key__"]: sample for sample in read(other, "True")[0]}
        for sample in found:
            assert sample in (every.get(sample["__key__"]), now.get(sample["__key__"])), (seed, kind)
        if told or kind == "nothing":
            assert found == scanned, (seed, kind)
        elif not errors and found != scanned:
            # payloads may have changed
            assert [sample["__key__"] for sample in found] == [sample["__key__"] for sample in before], (seed, kind)
        for error in errors:
            same = [type(each) for each in scan_errors]
            assert type(error) is StaleIndex or type(error) in same, (seed, kind, error)
        outcomes.add("stale" if any(type(error) is StaleIndex for error in errors) else "error" if errors else "given")
        outcomes |= {"warned"} if told else set()
    assert outcomes == {"refused", "stale", "error", "given", "warned"}
