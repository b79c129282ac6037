"""Commands and functions over samples, and other compressions."""

import gzip
import io
import os
import threading

import pytest

from webdataset.core.errors import AllDropped, CommandFailed, EncodingError, SampleError, TarError, UsageError
from webdataset.reshaping.processing import (
    SampleFunction,
    ShellCommand,
    judge_results,
    load_function,
    map_in_order,
    process_samples,
)
from webdataset.reshaping.recompression import make_target_name, recompress_shard
from webdataset.samples.raw_samples import read_samples
from webdataset.testing import archives


def samples(*members):
    """Samples of an archive with these members."""
    return list(read_samples(io.BytesIO(archives.by_hand(list(members)))))


SAMPLES = samples(*((f"k{number}.{field}", b"%d" % number) for number in range(9) for field in ("txt", "cls")))


def run(command, **options):
    """The samples after a shell command."""
    return list(process_samples(SAMPLES, ShellCommand(command, os.environ), **options))


def test_command_changes_adds_and_removes_fields():
    """Files in the folder are fields; what is not touched stands as it stood."""
    found = run("echo new > sample.txt; mv sample.cls sample.a.b; echo $WDS_KEY > sample.key; echo out; echo x > other")
    assert [sample.key for sample in found] == [sample.key for sample in SAMPLES]
    assert found[3].payloads() == {"txt": b"new\n", "a.b": b"3", "key": b"k3\n"}
    assert run("true") == SAMPLES


def test_order_stays_however_long_each_takes():
    """Several run at a time, and results come in the order of the samples."""
    found = run('[ $WDS_KEY = k0 ] && sleep 0.3; echo "$WDS_KEY" > sample.txt', jobs=4)
    assert [sample.payload("txt") for sample in found] == [b"k%d\n" % number for number in range(9)]


def test_failures():
    """A failing command stops with what it said, or the sample is left out or kept."""
    command = "if [ $WDS_KEY = k2 ]; then echo why >&2; exit 7; fi; echo new > sample.txt"
    with pytest.raises(CommandFailed, match="status 7: why") as caught:
        run(command)
    assert caught.value.key == "k2"
    failed = []
    skipped = run(command, on_error="skip", failed=lambda sample, error: failed.append((sample.key, type(error))))
    assert [sample.key for sample in skipped] == [sample.key for sample in SAMPLES if sample.key != "k2"]
    assert failed == [("k2", CommandFailed)]
    kept = run(command, on_error="keep")
    assert kept[2] == SAMPLES[2]
    with pytest.raises(SampleError, match="leaves no file"):
        run("rm sample.*")
    with pytest.raises(CommandFailed, match="signal 9"):
        run("kill -9 $$")


def test_reading_ahead_is_bounded():
    """No more samples are taken than twice the jobs, beyond what has been asked for."""
    taken = []

    def source():
        for sample in SAMPLES:
            taken.append(sample.key)
            yield sample

    stream = process_samples(source(), lambda sample: [sample], jobs=2)
    next(stream)
    assert len(taken) <= 4
    stream.close()


def test_threads_are_so_many():
    """A function runs in as many threads as were asked for, at the same time."""
    barrier = threading.Barrier(3, timeout=60)

    def meet(sample):
        barrier.wait()
        return [sample]

    assert list(process_samples(SAMPLES, meet, jobs=3)) == SAMPLES


def call(function):
    """The samples after a Python function."""
    return list(process_samples(SAMPLES[:2], SampleFunction(function)))


def test_function():
    """A dict is a sample, None is none, several are several; unchanged fields stand as they stood."""
    assert call(lambda sample: sample) == SAMPLES[:2]
    assert call(lambda sample: sample if sample["__key__"] == "k1" else None) == SAMPLES[1:2]
    found = call(
        lambda sample: [{**sample, "__key__": f"{sample['__key__']}-{n}", "cls": n, "json": {"n": n}} for n in (1, 2)]
    )
    assert [sample.key for sample in found] == ["k0-1", "k0-2", "k1-1", "k1-2"]
    assert found[1].payloads() == {"txt": b"0", "cls": b"2", "json": b'{"n":2}'}
    assert found[0].members[0].name == "k0-1.txt"


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_function_that_gives_nothing_at_all(nothing):
    """It probably lacks a return: that is an error, and how many samples a function left out is told."""
    with pytest.raises(AllDropped, match="for every one of the 2 samples, .*does it lack a return"):
        call(lambda sample: nothing)
    assert list(process_samples([], SampleFunction(lambda sample: nothing))) == []


@pytest.mark.parametrize(("wanted", "told"), [({"k0", "k1"}, []), ({"k1"}, [(1, 2)])])
def test_how_many_are_left_out_is_told(wanted, told):
    """At the end, where there were any."""
    found = []
    function = SampleFunction(lambda sample: sample if sample["__key__"] in wanted else None)
    results = map_in_order(function, SAMPLES[:2], 1)
    made = list(judge_results(results, "stop", print, lambda *counts: found.append(counts)))
    assert {sample.key for sample in made} == wanted
    assert found == told


def test_failures_are_no_nothing():
    """Where some samples failed and were skipped, the others may have been left out rightly."""

    def fail_or_drop(sample):
        if sample["__key__"] == "k0":
            raise KeyError("k0")

    assert list(process_samples(SAMPLES[:2], SampleFunction(fail_or_drop), on_error="skip")) == []


def test_function_that_gives_no_sample():
    """What is no sample is an error that names the sample it was made of."""
    for made, error in (
        ([1], SampleError),
        ({}, SampleError),
        ({"__key__": "a.b", "x": b""}, SampleError),
        ({"x": object()}, EncodingError),
    ):
        with pytest.raises(error):
            call(lambda sample, made=made: made)
    for wrong in (3, True, "text", [b"x"]):
        with pytest.raises(SampleError, match=r"the function gives \w+: it must return a dictionary of fields"):
            call(lambda sample, made=wrong: made)


def test_function_that_fails():
    """Whatever a function raises is an error of the sample, with its cause."""
    with pytest.raises(SampleError, match="the function fails: KeyError: 'nope'") as caught:
        call(lambda sample: sample["nope"])
    assert caught.value.key == "k0"
    assert isinstance(caught.value.__cause__, KeyError)


def test_loading_functions():
    """Names of functions are checked."""
    assert load_function("os.path:join") is os.path.join
    for name in ("os", "os:", "none_such:f", "os:none_such", "os:name"):
        with pytest.raises(UsageError):
            load_function(name)
    with pytest.raises(UsageError, match=r"a module is named without \.py: path:join"):
        load_function("path.py:join")


@pytest.mark.parametrize(
    ("url", "kind", "name"),
    [
        ("a/x.tgz", "none", "x.tar"),
        ("s3://b/x.tar?versionId=3", "zst", "x.tar.zst"),
        ("x.y.tar.bz2", "gz", "x.y.tar.gz"),
        ("x.TXZ", "bz2", "x.tar.bz2"),
    ],
)
def test_names(url, kind, name):
    """The new name is the old one with another ending."""
    assert make_target_name(url, kind) == name


def test_names_that_are_no_shards():
    """A name without the ending of a shard has no new name."""
    with pytest.raises(UsageError):
        make_target_name("x.zip", "gz")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_recompression_keeps_the_stream(tmp_path, kind):
    """There and back, the tar stream is byte for byte what it was, padding after the end mark included."""
    whole = archives.by_hand([("a.txt", b"1" * 5000), ("README", b"r"), ("b.txt", b"2")]) + bytes(9000)
    (tmp_path / "x.tar").write_bytes(whole)
    recompress_shard(str(tmp_path / "x.tar"), tmp_path / "y", kind)
    assert recompress_shard(str(tmp_path / "y"), tmp_path / "z.tar", "none") == len(whole)
    assert (tmp_path / "z.tar").read_bytes() == whole


def test_recompression_of_damage(tmp_path):
    """A shard that is cut gives an error and no output."""
    (tmp_path / "x.tgz").write_bytes(gzip.compress(archives.by_hand([("a.txt", b"1" * 5000)])[:3000]))
    with pytest.raises(TarError):
        recompress_shard(str(tmp_path / "x.tgz"), tmp_path / "y.tar", "none")
    assert [path.name for path in tmp_path.iterdir()] == ["x.tgz"]
    with pytest.raises(UsageError):
        recompress_shard(str(tmp_path / "x.tgz"), tmp_path / "y.tar", "lz4")
