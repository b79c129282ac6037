"""``wds bench``: every step runs over the user's shards, and counts what it should."""

import pytest

import webdataset as wds
from support.command import json_lines, run_wds
from webdataset.cli import exit_status
from webdataset.cli.schema import find_schemas
from webdataset.core.errors import UsageError
from webdataset.loading.read_speed import STEPS, ReadSpeedTest

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two shards of 40 samples, and one whose samples have different fields."""
    folder = tmp_path_factory.mktemp("bench")
    for number in range(2):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(40):
                sink.write({"__key__": f"{number}-{index}", "cls": index, "txt": "x" * 100})
    with wds.TarWriter(str(folder / "ragged.tar")) as sink:
        sink.write({"__key__": "a", "cls": 1})
        sink.write({"__key__": "b", "cls": 1, "txt": "x"})
    with wds.TarWriter(str(folder / "empty.tar")):
        pass
    return folder


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_every_step(folder, mode):
    """A line for each step, as the schema says; every turn reads all samples of small shards."""
    arguments = ["s-{0..1}.tar", "--rounds", "2", "--batch-size", "16", "--mode", mode]
    values = json_lines(run_wds("bench", *arguments, "--json", cwd=folder))
    for value in values:
        jsonschema.Draft202012Validator(find_schemas()["bench"]).validate(value)
        assert len(value["rounds"]) == 2
        assert value["megabytes_per_second"] > 0
    assert [value["step"] for value in values] == list(STEPS)
    assert all(turn["samples"] == 80 for value in values[1:] for turn in value["rounds"])
    size = sum((folder / f"s-{number}.tar").stat().st_size for number in range(2))
    assert {turn["size_bytes"] for turn in values[0]["rounds"]} == {size}
    assert values[0]["samples_per_second"] is None
    assert [value["workers"] for value in values] == [0, 0, 0, 0, 2]
    # these turns take less than a clock tick
    assert all(turn["cpu_seconds"] > 0 for value in values for turn in value["rounds"])


def test_table(folder):
    """Steps can be chosen; the table has a line for each."""
    done = run_wds("bench", "s-0.tar", "--step", "raw", "--step", "batch", "--rounds", "1", cwd=folder)
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["step", "MB/s", "samples/s", "CPU", "s/GB"]
    assert [line.split()[0] for line in lines[1:]] == ["raw", "batch"]


def test_a_turn_ends_when_its_time_is_over(folder):
    """A step stops early where its time is short."""
    test = ReadSpeedTest([str(folder / "s-0.tar")] * 50, seconds=1e-6, rounds=1, steps=("samples", "raw"))
    found = test.measure()
    assert [each.step for each in found] == ["raw", "samples"]
    assert found[1].rounds[0].samples == 1


def test_fields(folder):
    """Samples with different fields are batched where the fields are named; the error says so."""
    wrong = run_wds("bench", "ragged.tar", "--step", "batch", cwd=folder, status=exit_status.FAILED)
    assert b"different fields" in wrong.stderr
    run_wds("bench", "ragged.tar", "--step", "batch", "--field", "cls", "--rounds", "1", cwd=folder)


def test_mistakes(folder):
    """Shards without samples, shards that are not there, and decoders that do not exist."""
    assert b"no samples" in run_wds("bench", "empty.tar", cwd=folder, status=exit_status.FAILED).stderr
    run_wds("bench", "none.tar", cwd=folder, status=exit_status.FAILED)
    run_wds("bench", "s-0.tar", "--decode", "nothing", "--step", "decode", cwd=folder, status=exit_status.WRONG_USE)
    with pytest.raises(UsageError, match="steps are"):
        ReadSpeedTest(["a.tar"], steps=("fast",)).measure()
