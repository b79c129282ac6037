"""Whole pipelines under the published versions 0.2.86 and 1.0.2 and here: equal results, or a deviation with its name.

The pipelines stand in ``pipelines/``, written once, in words that all versions know; ``pipelines/kit.py`` runs the
whole table in one process for each version, over the same shards. What each version writes, the others read.

Every difference stands in ``DEVIATIONS`` under an id. The page ``docs/deviations.md`` explains each id to users: one
difference more or less, or one without an explanation, fails.
"""

import gzip
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import webdataset as wds
from support import zoo
from webdataset.testing import archives

pytestmark = pytest.mark.oracle

ORACLES = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}
MODULES = ("processing", "reading", "writing")
KIT = Path(__file__).parent / "pipelines" / "kit.py"


def as_npy(array):
    """An array as a file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def as_npz(**arrays):
    """Arrays as a file."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def as_picture(kind, shape=(4, 5, 3), **options):
    """A picture as a file."""
    pixels = np.random.default_rng(len(kind)).integers(0, 255, shape, dtype="uint8")
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def training(shard):
    """Members of a good shard."""
    for index in range(6):
        key, rng = f"s{shard}/{index:03d}", np.random.default_rng(shard * 10 + index)
        yield f"{key}.txt", f"text {index} of {shard}".encode() * (index + 1)
        yield f"{key}.cls", b"%d" % index
        yield f"{key}.json", json.dumps({"n": [index, None, 2.5], "s": "\u00e9"}).encode()
        yield f"{key}.seg.png", as_picture("PNG", (3, 4, 3))
        yield f"{key}.npy", as_npy(rng.random((2, 3), dtype="float32"))


def extensions():
    """One sample with a field for every extension that has a decoder somewhere."""
    import cbor2
    import msgpack

    number, text = b"12", "text \u00e9".encode()
    fields = dict.fromkeys(("cls", "cls2", "index", "inx", "id", "class", "count"), number)
    fields |= dict.fromkeys(("txt", "text", "transcript", "html", "htm"), text)
    fields |= dict.fromkeys(("json", "jsn"), b'{"a": [1, null, 2.5, 123456789012345678901234567890]}')
    fields |= dict.fromkeys(("pyd", "pickle", "pkl"), pickle.dumps({"a": [1, (2, None)], "b": b"x"}, 2))
    fields |= {"npy": as_npy(np.arange(6).reshape(2, 3)), "npz": as_npz(a=np.arange(3), b=np.ones(2))}
    fields |= dict.fromkeys(("mp", "msg", "msgpack"), msgpack.packb({"a": [1, b"x", "y"]}))
    fields |= {"cbor": cbor2.dumps({"a": [1, b"x", "y"]}), "bin": b"\0\1", "xyz": b"?"}
    fields |= {kind.lower(): as_picture(kind) for kind in ("PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP")}
    fields |= {"jpg": as_picture("JPEG", quality=95), "jpeg": as_picture("JPEG", (8, 8, 3)), "tif": as_picture("TIFF")}
    fields |= {
        "pgm": as_picture("PPM", (4, 5)),
        "gray.png": as_picture("PNG", (4, 5)),
        "alpha.png": as_picture("PNG", (4, 5, 4)),
    }
    return [(f"all/x.{field}", content) for field, content in fields.items()]


def shards():
    """Members of every shard by its name."""
    made = {f"train-{index:03d}": list(training(index)) for index in range(4)}
    made |= {
        "upper": [("a.TXT", b"0"), ("a.Cls", b"1"), ("B.txt", b"2"), ("B.SEG.Png", b"3")],
        "odd": [(name, name.encode()) for name in (
            "a.b.c", "a/b.c/d.tar.gz", "a.b/c.jpg", "./a.jpg", "a..jpg", "a.", ".hidden", "dir/.hidden.jpg", "noext",
            "235342 Track 2.0 (Clean).mp3", "caf\u00e9.\u00c9XT", "a//b.c", "a b.c d", "dir.d/file",
        )],
        "meta": [("__meta__/x.txt", b"0"), ("__k__", b"1"), ("__k__.txt", b"2"), ("dir/__meta__/x.txt", b"3"),
                 ("a.txt", b"4")],
        "hidden": [(".hidden", b"0"), ("a.txt", b"1"), ("d/.h.txt", b"2"), ("noext", b"3"), ("a.cls", b"4")],
        "twice": [("t.txt", b"0"), ("t.cls", b"1"), ("t.txt", b"2"), ("u.txt", b"3")],
        "apart": [("a.txt", b"0"), ("b.txt", b"1"), ("a.cls", b"2")],
        "head": [("a.txt", b"0"), ("k.txt", b"1")],
        "tail": [("k.cls", b"2"), ("z.txt", b"3")],
        "bad": [("a.txt", b"0"), ("a.__bad__", b"1"), ("b.txt", b"2")],
        "nothing": [],
        "long": [("n" * 150 + ".txt", b"0"), ("d" * 80 + "/" + "e" * 80 + ".txt", b"1"), ("caf\u00e9.txt", b"2")],
        "extensions": extensions(),
        "gzipped": [("a.txt.gz", gzip.compress(b"text")), ("a.json.gz", gzip.compress(b"[1]")),
                    ("a.png.gz", gzip.compress(as_picture("PNG"))), ("a.bin.gz", gzip.compress(b"x"))],
        "numbers": [("a.txt", b"5"), ("a.xyz", b"6"), ("b.txt", b"7")],
        "broken-field": [("a.cls", b"1"), ("b.cls", b"one"), ("c.cls", b"3")],
        "nulls": [("a.json", b"null"), ("b.json", b"[null]")],
        "pickles": [(f"p{protocol}.pyd", pickle.dumps({"a": [1, 2.5, "x", b"y", (None, True)], 3: {4}}, protocol))
                    for protocol in range(6)],
        "xdecode": [("a.txt", b"t"), ("a.cls", b"3"), ("a.seg.png", b"123"), ("a.bin", b"b")],
        "gaps": [("a.txt", b"0"), ("a.cls", b"1"), ("b.txt", b"2"), ("c.txt", b"3"), ("c.cls", b"4")],
        "shapes": [(f"{index}.npy", as_npy(np.zeros(index))) for index in range(3)],
    }  # fmt: skip
    made |= {f"od{mark}d": [(f"k{index}.txt", b"0")] for index, mark in enumerate((" ", "#", "?", ";", "%20", "+"))}
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with every shard."""
    import cbor2

    place = tmp_path_factory.mktemp("shards")
    (place / "zoo").mkdir()
    zoo.build(place / "zoo")
    for name, members in shards().items():
        (place / f"{name}.tar").write_bytes(archives.by_tarfile(members, format="pax"))
    good = (place / "train-000.tar").read_bytes()
    for kind in ("gz", "bz2", "xz"):
        (place / f"train-000.tar.{kind}").write_bytes(archives.compressed(good, kind))
    (place / "junk.tar").write_bytes(b"<html>not found</html>" * 100)
    (place / "zero-bytes.tar").write_bytes(b"")
    (place / "cut.tar").write_bytes((place / "head.tar").read_bytes()[:1800])
    (place / "records.cbors").write_bytes(b"".join(cbor2.dumps({"__key__": f"{n}", "x": n}) for n in range(5)))
    return place


def probe(interpreter, folder, out, *, modules=MODULES, read=None, more_paths=()):
    """Run the table in one interpreter.

    Args:
        interpreter: path of a Python.
        folder: of the shards.
        out: an empty folder for what the pipelines write.
        modules: with the pipelines.
        more_paths: where to look for packages that the interpreter lacks.
        read: folders with shards to read back, by name.

    Returns:
        ``{"version": …, "seen": {pipeline: result}, "read": {name: {shard: samples}}}``.
    """
    given = json.dumps({"folder": str(folder), "out": str(out), "modules": modules, "read": read or {}})
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONWARNINGS": "ignore",
        "PYTHONIOENCODING": "utf-8",
        "HOME": str(out),
        "KIT_MORE_PATHS": os.pathsep.join(more_paths),
    }
    if interpreter == sys.executable:
        environment["PYTHONPATH"] = str(Path(wds.__file__).parents[1])
    done = subprocess.run(
        [interpreter, KIT], input=given.encode(), capture_output=True, env=environment, cwd=out, timeout=250
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return json.loads(done.stdout[done.stdout.rindex(b'{"version"') :])


@pytest.fixture(scope="module")
def outs(tmp_path_factory):
    """A folder for what each version writes."""
    return {version: tmp_path_factory.mktemp(f"out-{version}") for version in ("ours", *ORACLES)}


@pytest.fixture(scope="module")
def ours(folder, outs):
    """What this library does."""
    return probe(sys.executable, folder, outs["ours"])["seen"]


@pytest.fixture(scope="module")
def read_here(outs, ours):
    """A function that tells what this library reads of the shards that a version wrote."""

    def read(version):
        place = outs[version]
        return probe(sys.executable, place, place, modules=(), read={version: str(place)})["read"][version]

    return read


@pytest.fixture(scope="module", params=ORACLES)
def published(request, folder, outs, ours):
    """A published version, what it does, and what it reads of our shards and of its own."""
    version = request.param
    interpreter = os.environ.get(ORACLES[version])
    if not interpreter:
        pytest.skip(f"{ORACLES[version]} names no interpreter with webdataset {version}")
    found = probe(interpreter, folder, outs[version], read={"ours": str(outs["ours"]), "own": str(outs[version])})
    assert found["version"] == version
    return version, found["seen"], found["read"]


SERVED = ("read_from_http", "cached_from_http", "cached_by_the_environment")
BOTH = frozenset(ORACLES)
OLD, NEW = frozenset({"0.2.86"}), frozenset({"1.0.2"})

# id in docs/deviations.md: (versions from which ours differs, pipelines, or cases of them)
DEVIATIONS = {
    "border": (OLD, {"samples_across_a_border", "hidden_and_meta_names"}),
    "interrupted-sample": (BOTH, {"damage_passed_over", "damage_warned_about"}),
    "sample-before-error": (OLD, {"damage_raised", "urls_of_no_file"}),
    "no-samples": (OLD, {"no_samples_at_all", "more_workers_than_shards", "shards_of_the_zoo/empty"}),
    "joined": (BOTH, {"shards_of_the_zoo/joined"}),
    "missing-end": (BOTH, {"shards_of_the_zoo/no_end_mark"}),
    "split-samples": (
        BOTH,
        {"keys_that_come_apart", "odd_names", "hidden_and_meta_names", "shards_of_the_zoo/split_samples"},
    ),
    "end-of-shard": (NEW, {"grouper_of_another_program"}),
    "special-characters": (NEW, {f"urls_with_marks/od{mark}d" for mark in "#;?"}),
    "resampled-nodes": (NEW, {"resampled_over_nodes"}),
    "cache-directory": (BOTH, {"cache_in_no_directory/built"}),
    "cache-by-environment": (NEW, {"cached_by_the_environment/files"}),
    "batch-tuple": (
        OLD,
        {"batched_tuples", "batched_without_the_rest", "batched_anew", "open_flamingo", "mixed_then_processed",
         "mock_samples", "repeated/with_epoch of batches"},
    ),
    "batch-dict": (OLD, {"batched_dictionaries"}),
    "listed": (OLD, {"listed/listed", "listed/unlisted", "listed_without_the_rest"}),
    "listed-partial": (NEW, {"listed_without_the_rest"}),
    "newer-names": (OLD, {"shards_of_a_directory", "shuffled_by_seed", "tuples_with_gaps/none"}),
    "older-names": (NEW, {"records_of_cbor"}),
    "record-url": (OLD, {"records_of_cbor"}),
    "extract-keys": (OLD, {"extracted/bare"}),
    "json-null": (BOTH, {"decoded_null"}),
    "pkl": (OLD, {"decoded_fields_of_every_extension/pkl"}),
    "json-compact": (BOTH, {"written_json/dict", "written_json/accents", "written_every_extension/jsn"}),
    "json-text": (BOTH, {"written_json/text"}),
    "pbm-pgm": (BOTH, {"written_every_extension/pbm", "written_every_extension/pgm"}),
    "no-empty-shard": (BOTH, {"written_in_no_shards/shards"}),
    "complete-or-absent": (BOTH, {"written_by_a_writer_that_fails/there"}),
}  # fmt: skip


# the same for shards that were written: how they are read, and what is in them
DECODED_OF_THEIRS = {
    "no-samples": (OLD, {"ext-pbm.tar", "ext-pgm.tar"}),
    "decoding-error": (OLD, {"json-text.tar"}),
}
WRITTEN = {"pbm-pgm": (BOTH, {"ext-pbm.tar", "ext-pgm.tar"}), "json-text": (BOTH, {"json-text.tar"})}


def listed(version, *tables):
    """All that tables list for a version, in order."""
    return sorted(
        {case for table in tables for versions, cases in table.values() if version in versions for case in cases}
    )


LOADED = {
    "batch-tuple": (OLD, {"batched_tensors", "loaded_and_batched_anew"}),
    "no-samples": (OLD, {"loaded_by_more_workers_than_shards"}),
    "dataset-as-stage": (OLD, {"piped_datasets", "wrapped_datasets"}),
}


def agree(mine, theirs):
    """Tell whether results are equal; an error of ours must be caught by who catches theirs.

    Their assertions are the exception: no error of ours is an AssertionError.
    """
    if isinstance(mine, dict) and isinstance(theirs, dict):
        if "raises" in mine and "raises" in theirs:
            return theirs["raises"][0] in {*mine["raises"], "AssertionError"}
        return mine.keys() == theirs.keys() and all(agree(value, theirs[name]) for name, value in mine.items())
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(agree, mine, theirs))
    return mine == theirs


def case_of(seen, case):
    """The end of a result, for people."""
    name, _, part = case.partition("/")
    result = seen[name]
    return str(result.get(part) if part and isinstance(result, dict) else result)[-200:]


def differing(mine, theirs):
    """Names of pipelines, or of cases in them, whose results differ."""
    for name, result in mine.items():
        other = theirs[name]
        if isinstance(result, dict) and isinstance(other, dict):
            cases = {**result, **other}
            yield from (f"{name}/{case}" for case in cases if not agree(result.get(case), other.get(case)))
        elif not agree(result, other):
            yield name


def differing_shards(some, others):
    """The shards that two readings give otherwise, or that one of them lacks."""
    return sorted(name for name in {*some, *others} if not agree(some.get(name), others.get(name)))


def test_ours_differs_exactly_where_it_says(ours, published):
    """Over a hundred pipelines give the same under each version and here, but for the deviations listed."""
    version, theirs, _ = published
    assert ours.keys() == theirs.keys()
    served = shutil.which("curl") is not None  # with which the published versions read from servers
    if not served:
        theirs = {**theirs, **{name: ours[name] for name in SERVED}}
    expected = [case for case in listed(version, DEVIATIONS) if served or case.split("/")[0] not in SERVED]
    found = sorted(differing(ours, theirs))
    unlike = sorted({*found} ^ {*expected})
    explained = [f"{case}\n  ours   {case_of(ours, case)}\n  theirs {case_of(theirs, case)}" for case in unlike]
    assert found == expected, "\n".join(explained)


def test_the_pipelines_gave_something(ours):
    """Nearly every pipeline gives samples here: comparing nothing would prove nothing."""
    assert len(ours) > 120
    lists = {name: result for name, result in ours.items() if isinstance(result, list)}
    first = {name: result[0] for name, result in lists.items() if result}
    errors = {name for name, result in first.items() if isinstance(result, dict) and "raises" in result}
    assert errors == {
        "decoded_by_an_unknown_spec", "decoded_after_decoding_without_partial", "no_urls", "no_samples_at_all",
        "several_nodes_without_a_splitter", "more_workers_than_shards", "batched_arrays_of_several_shapes",
    }  # fmt: skip
    assert {name for name, result in lists.items() if result == []} == {"no_samples_at_all_in_stages"}


def torch_paths(interpreter):
    """Where an interpreter of the same Python version may borrow torch from."""
    torch = pytest.importorskip("torch")
    version = subprocess.run(
        [interpreter, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=True, text=True
    )
    if tuple(map(int, version.stdout.split())) != sys.version_info[:2]:
        pytest.skip("the published versions were installed for another Python, which cannot load torch from here")
    return [str(Path(torch.__file__).parents[1])]


def loaded(interpreter, folder, out):
    """What loaders give under an interpreter."""
    return probe(interpreter, folder, out, modules=["loading"], more_paths=torch_paths(interpreter))["seen"]


@pytest.fixture(scope="module")
def loaded_here(folder, tmp_path_factory):
    """What loaders give here."""
    return loaded(sys.executable, folder, tmp_path_factory.mktemp("loaded"))


@pytest.mark.torch
@pytest.mark.parametrize("version", ORACLES)
def test_loaders_agree(version, folder, loaded_here, tmp_path):
    """Loaders, workers and tensors: the same as the published version gives, but for the deviations listed."""
    interpreter = os.environ.get(ORACLES[version])
    if not interpreter:
        pytest.skip(f"{ORACLES[version]} names no interpreter with webdataset {version}")
    theirs = loaded(interpreter, folder, tmp_path)
    expected, unlike = listed(version, LOADED), sorted(differing(loaded_here, theirs))
    explained = [f"{case}\n  ours   {case_of(loaded_here, case)}\n  theirs {case_of(theirs, case)}" for case in unlike]
    assert unlike == expected, "\n".join(explained)


def test_shards_of_ours_are_read_as_here(read_here, published):
    """What this library writes, each version reads with the same keys and values as this library does."""
    _, _, read = published
    assert differing_shards(read_here("ours"), read["ours"]) == []


def test_shards_of_theirs_are_read_as_there(read_here, published):
    """What each version writes, this library reads with the same keys and values as that version does."""
    version, _, read = published
    assert differing_shards(read_here(version), read["own"]) == listed(version, DECODED_OF_THEIRS)


def test_shards_of_ours_hold_what_theirs_hold(published):
    """To each version it makes no difference which library wrote a shard."""
    version, _, read = published
    assert len(read["ours"]) > 50
    assert differing_shards(read["ours"], read["own"]) == listed(version, WRITTEN)


def test_every_deviation_is_explained(unexplained):
    """The page for users explains each id, at an anchor of that name."""
    assert unexplained({**DEVIATIONS, **LOADED, **DECODED_OF_THEIRS, **WRITTEN}) == []
