"""Fields made to do harm: none runs code, none alters the process, none takes much memory, under the default trust.

Each payload that would run code creates a marker file when it is unpickled without care; a first test shows that it
does, so that a payload that has gone stale is noticed.
"""

import collections
import copyreg
import fractions
import gzip
import io
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from webdataset.autodecode import Decoder
from webdataset.codecs.pickle_allowlist import LAZY_TYPES, TYPES, WRAPPED
from webdataset.codecs.safe_pickle import PLAIN, add_safe_globals, has_bounded_memo, unpickle_loads
from webdataset.core.errors import CodecError, DecodingError, UnsafeContent

pytestmark = pytest.mark.limited


class Touch:
    """An object whose pickle creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def text(value):
    """Return the opcodes that push a str."""
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def named(module, name):
    """Return the opcodes that push a global, protocol 0."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def stacked(module, name):
    """Return the opcodes that push a global, protocol 4."""
    return text(module) + text(name) + pickle.STACK_GLOBAL


def call(function, *arguments):
    """Return the opcodes that call a global."""
    return function + pickle.MARK + b"".join(arguments) + pickle.TUPLE + pickle.REDUCE


def executing(path):
    """Return pickles that create ``path``, name to bytes."""
    arguments = text(str(path)) + text("w")
    opened = call(named("io", "open"), arguments)
    nested = pickle.dumps(Touch(str(path)))
    return {
        "GLOBAL": opened + b".",
        "STACK_GLOBAL": b"\x80\x04" + call(stacked("io", "open"), arguments) + b".",
        "builtins": call(named("builtins", "open"), arguments) + b".",
        "python 2 name": call(named("__builtin__", "open"), arguments) + b".",
        "eval": call(named("builtins", "eval"), text(f"open({str(path)!r}, 'w')")) + b".",
        "exec": call(named("builtins", "exec"), text(f"open({str(path)!r}, 'w')")) + b".",
        "os.system": call(named("os", "system"), text(f"touch '{path}'")) + b".",
        "posix.system": call(named("posix", "system"), text(f"touch '{path}'")) + b".",
        "INST": pickle.MARK + arguments + pickle.INST + b"io\nopen\n.",
        "OBJ": pickle.MARK + named("_io", "FileIO") + arguments + pickle.OBJ + b".",
        "NEWOBJ": named("_io", "FileIO") + pickle.MARK + arguments + pickle.TUPLE + pickle.NEWOBJ
        + pickle.MARK + arguments + pickle.TUPLE + pickle.POP + call(named("io", "open"), arguments) + b".",
        "memo split": text("io") + b"q\x00" + b"0" + text("open") + b"q\x01" + b"0"
        + call(b"h\x00h\x01" + pickle.STACK_GLOBAL, arguments) + b".",
        "result popped": opened + b"0N.",
        "broken tail": opened + b"0" + b"\xff\xff\xff",
        "hidden in a container": b"]" + opened + b"a.",
        "dotted name": b"\x80\x04" + call(stacked("subprocess", "os.system"), text(f"touch '{path}'")) + b".",
        "dotted from an allowed module": b"\x80\x04"
        + call(stacked("collections", "_sys.modules.__class__.fromkeys"), text("a"))
        + b"0" + opened + b".",
        "pickle in pickle": call(named("pickle", "loads"), pickle.BINBYTES + struct.pack("<I", len(nested)) + nested)
        + b".",
        "partial": call(call(named("functools", "partial"), named("io", "open"), arguments)) + b".",
        "getattr": call(call(named("builtins", "getattr"), call(named("builtins", "__import__"), text("os")),
                             text("system")), text(f"touch '{path}'")) + b".",
        "numpy": call(named("numpy.f2py.diagnose", "os.system"), text("true")) + b"0" + opened + b".",
        "reconstructor": call(named("copyreg", "_reconstructor"), named("_io", "FileIO"), named("_io", "FileIO"),
                              text(str(path))) + b"0" + opened + b".",
        "codecs": call(named("_codecs", "encode"), text("x"), text("rot13")) + b"0" + opened + b".",
    }  # fmt: skip


NAMES = sorted(executing("x"))
STALE_BY_THEMSELVES = {"dotted from an allowed module", "numpy", "reconstructor", "codecs", "NEWOBJ"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in STALE_BY_THEMSELVES])
def test_the_payloads_are_live(name, tmp_path):
    """Without care, each payload does create its file."""
    path = tmp_path / "marker"
    program = "import pickle, sys\ntry:\n    pickle.loads(sys.stdin.buffer.read())\nexcept Exception:\n    pass\n"
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], input=executing(path)[name], check=True)
    assert path.exists()


@pytest.mark.parametrize("extension", ["pyd", "pkl", "pickle", "pyd.gz"])
@pytest.mark.parametrize("name", NAMES)
def test_no_pickle_runs_code(name, extension, tmp_path):
    """Each is refused before anything of it is called."""
    path = tmp_path / "marker"
    data = executing(path)[name]
    with pytest.raises(CodecError):
        Decoder([])({"__key__": "k", extension: gzip.compress(data) if extension.endswith("gz") else data})
    assert not path.exists()


@pytest.mark.parametrize("cached", [False, True])
def test_extension_codes_are_refused(cached, tmp_path):
    """EXT opcodes mean what the process has registered: they are refused, also once copyreg has them cached."""
    path = tmp_path / "marker"
    copyreg.add_extension("io", "open", 200)
    try:
        data = (
            pickle.EXT1 + bytes([200]) + pickle.MARK + text(str(path)) + text("w") + pickle.TUPLE + pickle.REDUCE + b"."
        )
        if cached:
            pickle.loads(pickle.EXT1 + bytes([200]) + b".")
        for payload in (data, data.replace(pickle.EXT1 + bytes([200]), pickle.EXT2 + b"\xc8\0")):
            with pytest.raises(UnsafeContent, match="extension code 200"):
                unpickle_loads(payload)
        assert unpickle_loads(pickle.dumps({"a": [1, b"\x82\xc8"]})) == {"a": [1, b"\x82\xc8"]}
    finally:
        copyreg.remove_extension("io", "open", 200)
        copyreg.clear_extension_cache()
    assert not path.exists()
    with pytest.raises(DecodingError):
        Decoder([])({"pyd": data})


@pytest.mark.parametrize(
    "target",
    [
        named("collections", "Counter"),
        named("fractions", "Fraction"),
        named("uuid", "UUID"),
        named("pathlib", "PurePosixPath"),
        named("collections", "OrderedDict"),
        named("builtins", "int"),
        named("_codecs", "encode"),
        named("copyreg", "_reconstructor"),
        named("numpy", "dtype"),
        named("numpy", "ndarray"),
        named("numpy.ma", "MaskedArray"),
        named("numpy.core.multiarray", "_reconstruct"),
        call(named("builtins", "slice"), pickle.NONE),
    ],
    ids=str,
)
def test_classes_and_functions_cannot_be_changed(target):
    """BUILD with a slot state would set attributes of a class for the whole process."""
    for state in (
        pickle.NONE + b"}" + text("update") + named("builtins", "int") + b"s" + pickle.TUPLE2,
        b"}" + text("update") + named("builtins", "int") + b"s",
    ):
        with pytest.raises((CodecError, AttributeError, TypeError)):
            unpickle_loads(target + state + pickle.BUILD + b".")
    assert collections.Counter.update is not int
    assert not hasattr(fractions.Fraction, "update")


def dtype_pickle(specification, *state):
    """Return the opcodes of a dtype with a state."""
    made = call(named("numpy", "dtype"), text(specification), pickle.NEWFALSE, pickle.NEWTRUE)
    return made + pickle.dumps(state, 2)[2:-1] + pickle.BUILD


FORGED = {
    "object flags cleared": dtype_pickle("O8", 3, "|", None, None, None, -1, -1, 0),
    "object flags cleared, version 4": dtype_pickle("O8", 4, "|", None, None, None, -1, -1, 0, None),
    "object field without flags": call(named("numpy", "dtype"), text("V8"), pickle.NEWFALSE, pickle.NEWTRUE)
    + pickle.MARK + pickle.BININT1 + b"\x03" + text("|") + pickle.NONE + text("a") + pickle.TUPLE1
    + b"}" + text("a") + dtype_pickle("O8", 3, "|", None, None, None, -1, -1, 63)
    + pickle.BININT1 + b"\0" + pickle.TUPLE2 + b"s"
    + pickle.BININT1 + b"\x08" + pickle.BININT1 + b"\x01" + pickle.BININT1 + b"\0" + pickle.TUPLE + pickle.BUILD,
    "field outside": call(named("numpy", "dtype"), text("V8"), pickle.NEWFALSE, pickle.NEWTRUE)
    + pickle.MARK + pickle.BININT1 + b"\x03" + text("|") + pickle.NONE + text("a") + pickle.TUPLE1
    + b"}" + text("a") + dtype_pickle("f8", 3, "<", None, None, None, -1, -1, 0)
    + pickle.BININT2 + b"\0\x10" + pickle.TUPLE2 + b"s"
    + pickle.BININT1 + b"\x08" + pickle.BININT1 + b"\x01" + pickle.BININT1 + b"\0" + pickle.TUPLE + pickle.BUILD,
    "size of text": dtype_pickle("U2", 3, "<", None, None, None, 4000, 4, 8),
    "negative size": dtype_pickle("S2", 3, "|", None, None, None, -8, 1, 0),
    "fields of a float": dtype_pickle("f8", 3, "<", None, ("a",), {}, -1, -1, 0),
    "flags of a float": dtype_pickle("f8", 3, "<", None, None, None, -1, -1, 63),
    "alignment": dtype_pickle("f8", 3, "<", None, None, None, -1, 3, 0),
    "not a state": dtype_pickle("f8", 3, "<"),
    "specification": call(named("numpy", "dtype"), text("f8,O")),
    "mapping": call(named("numpy", "dtype"), b"}"),
    "subarray of objects": call(named("numpy", "dtype"), text("V8"), pickle.NEWFALSE, pickle.NEWTRUE)
    + pickle.MARK + pickle.BININT1 + b"\x03" + text("|")
    + dtype_pickle("O8", 3, "|", None, None, None, -1, -1, 63) + b"K\x01" + pickle.TUPLE1 + pickle.TUPLE2
    + pickle.NONE + pickle.NONE + pickle.BININT1 + b"\x08" + pickle.BININT1 + b"\x08" + pickle.BININT1 + b"\0"
    + pickle.TUPLE + pickle.BUILD,
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_dtypes_cannot_be_forged(name):
    """A dtype that lies about objects or sizes would let a pickle read raw memory as pointers."""
    with pytest.raises((CodecError, ValueError)) as failure:
        unpickle_loads(FORGED[name] + b".")
    assert isinstance(failure.value, UnsafeContent) or name in ("field outside", "object field without flags")


def test_forged_dtypes_do_work_without_care():
    """The standard unpickler accepts the first forgery: what these checks are for."""
    forged = pickle.loads(FORGED["object flags cleared"] + b".")
    assert forged.kind == "O"
    assert not forged.hasobject


def buffer(content):
    """Return the opcodes that push bytes."""
    return pickle.BINBYTES + struct.pack("<I", len(content)) + content


ARRAYS = {
    "ndarray over a buffer": call(named("numpy", "ndarray"), b"K\x01" + pickle.TUPLE1,
                                  dtype_pickle("O8", 3, "|", None, None, None, -1, -1, 63), buffer(b"A" * 8)),
    "ndarray by NEWOBJ": named("numpy", "ndarray") + b"K\x01" + pickle.TUPLE1 + pickle.TUPLE1 + pickle.NEWOBJ,
    "huge ndarray": call(named("numpy", "ndarray"), pickle.dumps((2**40,), 2)[2:-1]),
    "MaskedArray": call(named("numpy.ma", "MaskedArray"), b"]"),
    "reconstruct with a shape": call(named("numpy.core.multiarray", "_reconstruct"), named("numpy", "ndarray"),
                                     pickle.dumps((2**40,), 2)[2:-1], buffer(b"b")),
    "reconstruct another class": call(named("numpy.core.multiarray", "_reconstruct"), named("builtins", "list"),
                                      pickle.dumps((0,), 2)[2:-1], buffer(b"b")),
    "frombuffer of objects": call(named("numpy.core.numeric", "_frombuffer"), buffer(b"A" * 8),
                                  dtype_pickle("O8", 3, "|", None, None, None, -1, -1, 63),
                                  b"K\x01" + pickle.TUPLE1, text("C")),
    "scalar of objects": call(named("numpy.core.multiarray", "scalar"),
                              dtype_pickle("O8", 3, "|", None, None, None, -1, -1, 63), buffer(b"A" * 8)),
    "array of fewer objects": call(named("numpy.core.multiarray", "_reconstruct"), named("numpy", "ndarray"),
                                   pickle.dumps((0,), 2)[2:-1], buffer(b"b"))
    + pickle.MARK + b"K\x01" + pickle.dumps((2**35,), 2)[2:-1]
    + dtype_pickle("O8", 3, "|", None, None, None, -1, -1, 63) + pickle.NEWFALSE + b"]" + pickle.TUPLE + pickle.BUILD,
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_made_of_their_own_bytes_only(name):
    """No array over foreign memory, of objects out of bytes, or of a size that its bytes do not bear out."""
    with pytest.raises(UnsafeContent):
        unpickle_loads(ARRAYS[name] + b".")


BOMBS = {
    "bytes of a number": call(named("builtins", "bytes"), pickle.dumps(2**40, 2)[2:-1]),
    "bytearray of a number": call(named("builtins", "bytearray"), pickle.dumps(2**40, 2)[2:-1]),
    "bytes by NEWOBJ": named("builtins", "bytes") + pickle.dumps((2**40,), 2)[2:-1] + pickle.NEWOBJ,
    "bytes by OBJ": pickle.MARK + named("builtins", "bytes") + pickle.dumps(2**40, 2)[2:-1] + pickle.OBJ,
    "bytes by INST": pickle.MARK + pickle.dumps(2**40, 2)[2:-1] + pickle.INST + b"builtins\nbytes\n",
    "list of a range": call(named("builtins", "list"), call(named("builtins", "range"), pickle.dumps(2**40, 2)[2:-1])),
    "set of a range": call(named("builtins", "set"), call(named("builtins", "range"), pickle.dumps(2**40, 2)[2:-1])),
    "fraction": call(named("fractions", "Fraction"), text("1e999999999")),
}


@pytest.mark.parametrize("name", BOMBS)
def test_short_pickles_cannot_ask_for_much_memory(name):
    """Calls that would make gigabytes of a few bytes are refused."""
    with pytest.raises(UnsafeContent):
        unpickle_loads(BOMBS[name] + b".")


@pytest.mark.parametrize("index", [2**24, 2**28, 2**31 - 1])
def test_the_memo_takes_no_more_memory_than_is_used(index):
    """Nine bytes that store under a huge index would make the C unpickler take up to 34 GB."""
    payloads = [b"\x80\x02]r" + struct.pack("<I", index) + b".", b"]p%d\n." % index]
    payloads += [b"\x80\x02X\x04\0\0\0rest0" + payloads[0][2:]]
    for payload in payloads:
        assert not has_bounded_memo(payload)
        tracemalloc.start()
        assert unpickle_loads(payload) == []
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()
    assert has_bounded_memo(b"\x80\x02X\x09\0\0\0]r" + struct.pack("<I", index) + b"...0].")


DAMAGED = [b"", b"r", b"p1", b"]p\n.", b"rrrrrr", b"\x80\x02]rrrrr", b"\xffrrrrr", b"X\xff\xff\xff\xffrrrrr."]


@pytest.mark.parametrize("payload", DAMAGED)
def test_what_cannot_be_cut_into_opcodes_is_not_given_to_the_c_unpickler(payload):
    """Cut short, unknown opcodes, indices that are no numbers: the careful reader says what is wrong."""
    if len(payload) > 4:
        assert not has_bounded_memo(payload)
    with pytest.raises(DecodingError):
        Decoder([])({"pyd": payload})


def test_calls_with_keywords_or_of_instances_are_refused():
    """NEWOBJ_EX with keywords, NEWOBJ of what is no class, and reconstructing a class that was not allowed."""
    keywords = named("builtins", "bytes") + b")" + b"}" + text("source") + b"K\x09" + b"s" + pickle.NEWOBJ_EX
    instance = call(named("collections", "Counter")) + b")" + pickle.NEWOBJ
    class_of_numpy = call(
        named("copyreg", "_reconstructor"), named("numpy", "ndarray"), named("builtins", "object"), pickle.NONE
    )
    no_tuple = named("collections", "Counter") + b"]" + pickle.REDUCE
    for payload in (keywords, instance, class_of_numpy, no_tuple):
        with pytest.raises(UnsafeContent):
            unpickle_loads(b"\x80\x04" + payload + b".")


def test_pictures_cannot_be_larger_than_their_pixels():
    """A pickled Pillow image whose size does not match its bytes is refused before memory is taken for it."""
    image = pytest.importorskip("PIL.Image").new("L", (8, 8))
    data = pickle.dumps(image, 2)
    assert unpickle_loads(data).size == (8, 8)
    forged = data.replace(b"K\x08K\x08", b"J\0\0\0\x01J\0\0\0\x01")
    assert forged != data
    with pytest.raises(UnsafeContent, match="picture of"):
        unpickle_loads(forged)


@pytest.mark.torch
def test_tensors_inside_pickles_run_nothing(tmp_path):
    """A pickled tensor's storage is another pickle: it is loaded with weights only, never by torch's own function."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "marker"
    saved = io.BytesIO()
    torch.save(Touch(str(path)), saved)
    legacy = io.BytesIO()
    torch.save(Touch(str(path)), legacy, _use_new_zipfile_serialization=False)
    assert not path.exists()
    for content in (saved.getvalue(), legacy.getvalue(), pickle.dumps(Touch(str(path)))):
        payload = call(named("torch.storage", "_load_from_bytes"), buffer(content)) + b"."
        with pytest.raises(CodecError):
            Decoder([])({"pyd": payload})
    for payload in (
        call(named("torch._utils", "_rebuild_tensor_v2"), *[pickle.NONE] * 6) + b".",
        call(named("torch._utils", "_rebuild_parameter"), *[pickle.NONE] * 3) + b".",
        call(named("torch.storage", "_load_from_bytes"), text("x")) + b".",
        call(named("torch", "load"), text(str(path))) + b".",
        call(named("torch.serialization", "load"), text(str(path))) + b".",
        call(named("torch._utils", "_rebuild_from_type_v2"), named("io", "open"), text(str(path))) + b".",
    ):
        with pytest.raises(UnsafeContent):
            unpickle_loads(payload)
    assert not path.exists()


@pytest.mark.torch
def test_pth_fields_run_nothing(tmp_path):
    """A .pth that would run code is refused, in both of torch's formats; trust='full' runs it."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "marker"
    for legacy in (False, True):
        stream = io.BytesIO()
        torch.save({"a": Touch(str(path))}, stream, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(UnsafeContent, match="weights_only.*trust='full'"):
            Decoder([])({"__key__": "k", "pth": stream.getvalue()})
        assert not path.exists()
        Decoder([], trust="full")({"__key__": "k", "pth": stream.getvalue()})["pth"]["a"].close()
        assert path.exists()
        path.unlink()


def npy(header, content=b""):
    """Return an .npy file with any header."""
    head = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + content


def zipped(**members):
    """Return a zip file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return stream.getvalue()


def hostile_arrays(path):
    """Return .npy files that would do harm."""
    objects = io.BytesIO()
    np.save(objects, np.array([Touch(str(path))], dtype=object), allow_pickle=True)
    return {
        "object array": objects.getvalue(),
        "pickle instead of npy": pickle.dumps(Touch(str(path))),
        "header expression": npy("__import__('os').system('touch " + str(path) + "')"),
        "header call": npy(
            "{'descr': open('" + str(path) + "','w'), 'fortran_order': False, 'shape': (1,)}", b"\0" * 8
        ),
        "huge shape": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 1024)}", b"\0" * 8),
        "negative shape": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", b"\0" * 8),
        "long header": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }" + " " * 60_000, b"\0" * 8),
        "nested header": npy("(" * 9_000 + ")" * 9_000),
        "object dtype in a structure": npy(
            "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}", b"\0" * 8
        ),
    }


@pytest.mark.parametrize("name", sorted(hostile_arrays("x")))
def test_arrays_run_nothing(name, tmp_path):
    """Npy and npz fields with pickled objects, code in headers or impossible shapes are errors."""
    path = tmp_path / "marker"
    content = hostile_arrays(path)[name]
    with pytest.raises(DecodingError):
        Decoder([])({"npy": content})
    if name != "pickle instead of npy":
        with pytest.raises(DecodingError):
            Decoder([])({"npz": zipped(a__npy=content)})
    assert not path.exists()


def test_npz_bombs_are_errors(monkeypatch):
    """The arrays of one npz may not take more than the limit."""
    from webdataset.codecs import numpy_arrays

    bomb = zipped(a__npy=npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000,)}", b"\0" * 1_000_000))
    assert Decoder([])({"npz": bomb})["npz"]["a"].shape == (1_000_000,)
    monkeypatch.setattr(numpy_arrays, "FREE_BYTES", 500_000)
    with pytest.raises(DecodingError, match="would take"):
        Decoder([])({"npz": bomb})


@pytest.mark.parametrize("extension", ["json", "mp", "cbor", "pyd"])
def test_deep_nesting_is_an_error_or_a_value(extension):
    """A field nested a hundred thousand deep does not end the process."""
    pytest.importorskip({"cbor": "cbor2", "mp": "msgspec"}.get(extension, "json"))
    data = {
        "json": b"[" * 100_000 + b"]" * 100_000,
        "mp": b"\x91" * 100_000 + b"\xc0",
        "cbor": b"\x81" * 100_000 + b"\xf6",
    }
    data["pyd"] = b"]" * 100_000 + b"a" * 99_999 + b"."
    program = (
        "import sys\nfrom webdataset.autodecode import Decoder\nfrom webdataset.core.errors import DecodingError\n"
        f"try:\n    Decoder([])({{{extension!r}: sys.stdin.buffer.read()}})\nexcept DecodingError:\n    pass\n"
    )
    subprocess.run([sys.executable, "-c", program], input=data[extension], check=True)


@pytest.mark.parametrize("extension", ["mp", "cbor"])
def test_length_bombs_are_errors(extension):
    """A record that promises four billion entries is an error at once."""
    pytest.importorskip({"cbor": "cbor2", "mp": "msgspec"}.get(extension, "json"))
    for data in {
        "mp": [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"],
        "cbor": [b"\x9a\xff\xff\xff\xff", b"\x5a\xff\xff\xff\xff"],
    }[extension]:
        with pytest.raises(DecodingError):
            Decoder([])({extension: data})


def test_the_allow_list_is_exact():
    """No name on the list has a dot, and none is one that is known to run code."""
    listed = {**PLAIN, **TYPES, **LAZY_TYPES, **WRAPPED}
    assert not [name for name in listed if "." in name[1]]
    assert not {"eval", "exec", "getattr", "setattr", "open", "type", "object.__reduce__"} & {
        name for _, name in listed
    }


def test_adding_a_class_does_not_allow_another():
    """add_safe_globals allows exactly what it was given."""
    with add_safe_globals([Touch]), pytest.raises(UnsafeContent):
        unpickle_loads(call(named("io", "open"), text("x")) + b".")
