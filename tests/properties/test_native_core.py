"""The native core gives what Python gives: samples, fields, offsets, errors, warnings, and what handlers are asked.

Archives of several programs and formats, whole and damaged in many ways, are read in chunks of many sizes under many
rules, once in each way. ``NATIVE_FUZZ_CASES`` chooses how many random cases are played (default 1 500).
"""

import gc
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import types
from pathlib import Path

import pytest

import webdataset as wds
from support.archive_fuzz import Case, draw_case, play
from webdataset.samples import native_core
from webdataset.samples.sample_reader import Reading, read_samples
from webdataset.tar.header import BLOCK

CASES = int(os.environ.get("NATIVE_FUZZ_CASES", "1500"))
needs_core = pytest.mark.skipif(native_core.load_native()[0] is None, reason="the native core was not compiled")


@pytest.fixture(autouse=True)
def restore_setting(monkeypatch):
    """Playing a case leaves ``WDS_NATIVE`` set."""
    monkeypatch.setenv("WDS_NATIVE", "1")


@needs_core
@pytest.mark.parametrize("part", range(5))
def test_random_archives(part):
    """Whole and damaged archives, whatever the chunks and rules."""
    for number in range(CASES // 5):
        case = draw_case(f"{part}.{number}")
        assert play(case, native=True) == play(case, native=False), (case.seed, case.sizes, case.rules)


@needs_core
def test_every_cut():
    """An archive cut at any byte: never half a sample, and the same words."""
    out = io.BytesIO()
    with wds.TarWriter(out) as sink:
        for number in range(4):
            sink.write({"__key__": f"{number}", "txt": "x" * 20, "cls": number})
    whole = out.getvalue()
    for stop in range(0, 9 * BLOCK, 3):
        case = Case(str(stop), whole[:stop], None, {"continues": False, "start": None})
        assert play(case, native=True) == play(case, native=False), stop


@needs_core
@pytest.mark.parametrize("form", ["ours", "pax-mtime", "long-folders"])
def test_most_bytes_are_taken_by_the_core(form, monkeypatch):
    """Of plain shards nearly all samples are made in C: a core that hands all back would pass the other tests."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    out = io.BytesIO()
    if form == "ours":
        with wds.TarWriter(out) as sink:
            for number in range(3000):
                sink.write({"__key__": f"{number:06d}", "jpg": b"x" * 700, "cls": number})
    else:
        with tarfile.open(
            fileobj=out, mode="w", format=tarfile.PAX_FORMAT if form == "pax-mtime" else tarfile.USTAR_FORMAT
        ) as file:
            for number in range(3000):
                for extension in ("jpg", "cls"):
                    member = tarfile.TarInfo(
                        f"{'folder/' * 20 if form == 'long-folders' else ''}{number:06d}.{extension}"
                    )
                    member.size, member.mtime = 700, 1.5 if form == "pax-mtime" else 1
                    file.addfile(member, io.BytesIO(b"x" * 700))
    by_python = []
    monkeypatch.setattr(
        native_core.NativeTaker,
        "add",
        lambda self, samples, offsets: (by_python.extend(samples), _add(self, samples, offsets)),
    )
    given = list(read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading()))
    assert len(given) == 3000
    assert len(by_python) < 150


_add = native_core.NativeTaker.add


@needs_core
def test_memory_of_abandoned_readers():
    """Readers that are left in the middle leave nothing behind."""
    code = """
import gc, io, resource, sys
import webdataset as wds
from webdataset.samples.sample_reader import Reading, read_samples
out = io.BytesIO()
with wds.TarWriter(out) as sink:
    for number in range(300):
        sink.write({"__key__": f"{number}", "bin": b"x" * 20_000, "cls": 1})
def leave():
    samples = read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading())
    next(samples), next(samples)
for _ in range(30):
    leave()
gc.collect()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(300):
    leave()
gc.collect()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000, done.stdout  # KiB: one reader holds up to 400


@needs_core
def test_nothing_is_left_of_shards_that_were_read():
    """The names of fields that a reader keeps are released with it, each of them; found by fuzz/coverage.py."""
    out = io.BytesIO()
    with wds.TarWriter(out) as sink:
        for number in range(3):
            sink.write({"__key__": f"{number}", **{f"field{each}": b"x" for each in range(5)}})

    def read(times):
        for _ in range(times):
            assert len(list(read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading()))) == 3
        gc.collect()

    read(10)
    before = sys.getallocatedblocks()
    read(300)
    assert sys.getallocatedblocks() < before + 150


@needs_core
def test_it_was_compiled_from_this_source():
    """A core of an older source would be tested in its place: ``make`` installs again where the source has changed."""
    source = Path(__file__).parents[2] / "native" / "take_samples.c"
    assert native_core.load_native()[0].SOURCE == hashlib.sha256(source.read_bytes()).hexdigest()[:16]


@pytest.mark.parametrize(("native", "said"), [("1", None), ("0", "no: WDS_NATIVE=0")])
def test_it_says_whether_it_is_used(native, said, monkeypatch):
    """``webdataset.__native__`` and ``wds doctor`` tell."""
    monkeypatch.setenv("WDS_NATIVE", native)
    assert wds.__native__ == (said or native_core.load_native()[1])


def test_a_free_threaded_python_leaves_the_module_of_others_alone(monkeypatch):
    """Its import system finds ``_native.abi3.so``, too, and objects there are laid out in another way."""
    monkeypatch.setattr(sys, "abiflags", "t")
    monkeypatch.setattr(native_core, "find_spec", lambda name: types.SimpleNamespace(origin="/x/_native.abi3.so"))
    monkeypatch.setattr(native_core, "importlib", None)
    native_core.load_native.cache_clear()
    try:
        assert native_core.load_native()[0] is None
        assert "free-threaded" in native_core.describe_native()
    finally:
        native_core.load_native.cache_clear()


@needs_core
def test_a_second_call_while_one_is_at_work_is_refused(monkeypatch):
    """A reader belongs to one thread; one that is used in two is an error, and the first call is not disturbed."""
    refused, cores, kept = [], [], native_core.NativeTaker

    class Field(str):
        """A name whose hash is asked for in the middle of a call."""

        __slots__ = ()

        def __hash__(self):
            for core in cores:
                with pytest.raises(RuntimeError, match="two threads"):
                    core.take()
                refused.append(core)
            return hash("txt")

    def make(core, grouper):
        field = Field("txt")
        hash(field)
        grouper.template[1]["txt"] = field
        cores.append(core)
        return kept(core, grouper)

    monkeypatch.setattr(native_core, "NativeTaker", make)
    out = io.BytesIO()
    with wds.TarWriter(out) as sink:
        for number in range(3):
            sink.write({"__key__": f"{number}", "txt": "x"})
    given = list(read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading()))
    assert [each["__key__"] for each in given] == ["0", "1", "2"]
    assert len(refused) >= 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [("missing", "not compiled"), ("broken", "no: undefined symbol"), ("other", "another version (2, not 1)")],
)
def test_without_a_usable_core_python_reads(fault, said, monkeypatch):
    """A core that is not there, cannot be loaded or is of another version is left alone, and the reason is told."""

    class Other:
        PROTOCOL = 2

    def load(name):
        if fault == "other":
            return Other
        raise ModuleNotFoundError(name) if fault == "missing" else ImportError("undefined symbol")

    monkeypatch.setenv("WDS_NATIVE", "1")
    monkeypatch.setattr(native_core, "importlib", types.SimpleNamespace(import_module=load))
    native_core.load_native.cache_clear()
    try:
        assert said in native_core.describe_native()
        out = io.BytesIO()
        with wds.TarWriter(out) as sink:
            sink.write({"__key__": "a", "txt": "x"})
        (sample,) = read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading())
        assert sample["txt"] == b"x"
    finally:
        native_core.load_native.cache_clear()
