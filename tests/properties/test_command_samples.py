"""Commands over random shards, damaged or not, to random targets: all samples come out once, or nothing is lost."""

import contextlib
import io
import json
import os
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webdataset.cli import exit_status
from webdataset.cli.main import main
from webdataset.testing import archives

COMMANDS = [
    "cat",
    "cat -c 2",
    "split -c 2",
    "split -s 4KiB",
    "select -w True",
    "select --on-error skip -c 3 -w True",
    "reshard -N 3",
    "reshard -N 3 --shuffle --seed 1",
    "shuffle --seed 1 -c 2",
    "shuffle --seed 1 -M 1",
    "sort -c 2",
    "sort -M 1",
    "tarp split -c 2",
    "tarp cat",
]
TARGETS = ["out-%d.tar", "in-%d.tar", "./in-%02d.tar", "link/in-%d.tar", "file:in-%d.tar", "other/in-%d.tar"]
SINGLE = ["out.tar", "in-0.tar", "link/in-1.tar"]
SAMPLE = st.tuples(
    st.sampled_from("abcdefgh"), st.dictionaries(st.sampled_from(["txt", "json"]), st.binary(max_size=9))
)
SHARDS = st.lists(st.lists(SAMPLE.filter(lambda sample: bool(sample[1])), max_size=5), min_size=1, max_size=4)
DAMAGE = st.none() | st.sampled_from(["missing", "cut", "text", "broken gz"])

Samples = Counter[tuple[str, tuple[tuple[str, bytes], ...]]]


def _write(path: Path, samples: list[tuple[str, dict[str, bytes]]]) -> None:
    path.write_bytes(
        archives.by_hand([(f"{key}.{name}", each[name]) for key, each in samples for name in sorted(each)])
    )


def _read(names: list[str]) -> Samples:
    """Return the samples of shards, by Python's own reader."""
    found: Samples = Counter()
    for name in names:
        with tarfile.open(name.removeprefix("file:")) as archive:
            last, fields = None, {}
            for member in [*archive.getmembers(), None]:
                key, _, field = ("", "", "") if member is None else member.name.partition(".")
                if last is not None and key != last:
                    found[last, tuple(sorted(fields.items()))] += 1
                    fields = {}
                last = key
                if member is not None:
                    content = archive.extractfile(member)
                    fields[field] = content.read() if content is not None else b""
    return found


def _damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "text":
        path.write_bytes(b"<html>Not a shard</html>" * 100)
    elif how == "broken gz":
        path.write_bytes(b"\x1f\x8b\x08\x00" + content[:600])
    else:
        # within the last header or payload, before the end mark
        path.write_bytes(content[: -1024 - 300] if len(content) > 1024 + 300 else b"\x01" * 100)


def _run(command: list[str]) -> tuple[int, list[str]]:
    """Run a command; return its status, and the shards that it says it wrote."""
    out, told = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        status = main(command)
        out.flush()
    lines = out.buffer.getvalue().decode().splitlines()
    return status, [json.loads(line)["shard"] for line in lines]


def _make_distinct(shards: list[list[tuple[str, dict[str, bytes]]]]) -> list[list[tuple[str, dict[str, bytes]]]]:
    """Return shards of which no sample has the key of the one before it."""
    return [
        [sample for place, sample in enumerate(shard) if not place or shard[place - 1][0] != sample[0]]
        for shard in shards
    ]


@pytest.mark.repeats
@given(SHARDS, st.sampled_from(COMMANDS), st.data(), st.booleans(), DAMAGE)
@settings(max_examples=150, deadline=None)
def test_no_sample_is_lost(shards, command, data, force, damage):
    """With status 0 the outputs hold each sample of the inputs once; else no input is another than before."""
    numbered = " -c " in command or " -s " in command or "reshard" in command or "tarp split" in command
    target = data.draw(st.sampled_from(TARGETS if numbered else SINGLE))
    shards = _make_distinct(shards)
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("other").mkdir()
            Path("link").symlink_to(".")
            names = [f"in-{number}.tar" for number in range(len(shards))]
            for name, samples in zip(names, shards, strict=True):
                _write(Path(name), samples)
            order = data.draw(st.permutations(names))
            expected = _read(order)
            if damage is not None:
                _damage(Path(data.draw(st.sampled_from(names))), damage)
            contents = {name: Path(name).read_bytes() for name in names if Path(name).exists()}
            status, written = _run([*command.split(), "--json", *["-F"] * force, "-o", target, *order])
            if status == exit_status.DONE:
                assert damage is None
                assert _read(written) == expected
                if not force or numbered:
                    assert all(Path(name).read_bytes() == content for name, content in contents.items())
            else:
                assert {name: Path(name).read_bytes() for name in contents} == contents
        finally:
            os.chdir(before)
