"""The basic decoders: text, numbers, JSON, records, compression."""

import bz2
import gzip
import json
import lzma
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.autodecode import Decoder
from webdataset.codecs import json_codec
from webdataset.codecs.compression import compress_gzip, decompress
from webdataset.codecs.json_codec import json_dumps, json_loads
from webdataset.core.errors import BadCompression, DecodingError, EncodingError

decode = Decoder(["auto"]).decode1

PROBES = [
    b'"a\x01b"', b'"a\nb"', b'"\xff"', b"01", b"1.", b".5", b"+1", b"-", b"1e5", b"-0", b"-0.0", b"[1,]", b'{"a":1,}',
    b" 1 ", b"\x0b1", b"NaN", b"-Infinity", b"1e400", b'"\\ud800"', b"\xef\xbb\xbf1", b'"\x7f"', b'"\\/"', b'"\\u0000"',
    b'{"a":1,"a":2}', b"1 2", b'"\xed\xa0\x80"', b'"\\x"', b"tru", b"", b" ", b"nul", b"null", b"-1e-400", b"0.1e1",
    b"123456789012345678901234567890", b"1E+2", b"[1 2]", b"\x00", b"4.35", b"9007199254740993.0", b"5e-324",
    b"1.7976931348623159e308", b"2.5e-324", b"123456789012345678901234567890.5", b"-9223372036854775809",
    b"18446744073709551616", b'"\xf4\x90\x80\x80"', b'"\xc0\x80"', b'"\\uD83D\\uDE00"', b"9" * 5000, b"[" * 100_000,
    '"é"'.encode("utf-16"), '"é"'.encode("utf-32"), '{"é": "€"}'.encode(),
]  # fmt: skip


def outcome(function, data):
    """Return a value's type and repr, or the class of the error."""
    try:
        value = function(data)
    except (ValueError, RecursionError) as error:
        return type(error)
    return type(value), repr(value)


@pytest.mark.parametrize("extension", ["html", "htm"])
def test_pages(extension):
    """Pages are text where they are UTF-8; in another encoding, which only their parser finds out, they stay bytes."""
    assert decode(extension, "häß".encode()) == "häß"
    assert decode(extension, "häß".encode("latin-1")) == "häß".encode("latin-1")


@pytest.mark.parametrize("extension", ["class", "count"])
def test_labels(extension):
    """Classes are numbers where they are written as such; names stay bytes."""
    assert decode(extension, b" -12\n") == -12
    assert decode(extension, b"1" * 30) == int("1" * 30)
    for name in (b"dog", b"", b"1.5", b"\xff"):
        assert decode(extension, name) == name


@pytest.mark.parametrize("extension", ["txt", "text", "transcript"])
def test_text(extension):
    """Text is UTF-8; anything else is an error."""
    assert decode(extension, "häß".encode()) == "häß"
    with pytest.raises(DecodingError):
        Decoder(["auto"])({extension: b"\xff"})


@pytest.mark.parametrize("extension", ["cls", "cls2", "index", "inx", "id"])
def test_whole_numbers(extension):
    """Numbers are decimal text, blanks around them allowed; anything else is an error."""
    assert decode(extension, b" -12\n") == -12
    assert decode(extension, b"1" * 30) == int("1" * 30)
    with pytest.raises(DecodingError, match="ValueError"):
        Decoder(["auto"])({extension: b"abc"})


def test_bytes_stay_bytes():
    """Bin is bytes, and so is what nobody knows."""
    for extension in ("bin", "mp4", "wav", "csv", "", "TXT"):
        assert decode(extension, b"\xff\0") == b"\xff\0"


@pytest.mark.parametrize("data", PROBES, ids=range(len(PROBES)))
def test_json_is_read_as_the_standard_library_reads_it(data):
    """Same value, same type, same error, for all that JSON texts may come up with."""
    assert outcome(json_loads, data) == outcome(json.loads, data)
    assert outcome(lambda data: decode("json", data), data) == outcome(json.loads, data)
    assert outcome(json_codec._make_scanning_loads(), data) == outcome(json.loads, data)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists), st.randoms())
def test_damaged_json_is_refused_as_the_standard_library_refuses_it(value, random):
    """Texts with a byte changed, added or left out: the same value or the same words, without msgspec."""
    data = bytearray(json.dumps(value, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass"))
    for _ in range(random.randrange(3)):
        place = random.randrange(len(data) + 1)
        data[place : place + random.randrange(2)] = random.choice(
            [b"", b" ", b"\n", b"\xa0", b"\0", b'"', b"\xff", b"]"]
        )
    results = []
    for loads in (json_codec._make_scanning_loads(), json.loads):
        try:
            results.append(repr(loads(bytes(data))))
        except ValueError as error:
            results.append(f"{type(error)} {error}")
    assert results[0] == results[1]


def test_json_without_msgspec_is_the_same(tmp_path):
    """Where msgspec is not installed the standard library reads and writes."""
    program = (
        "import sys; sys.modules['msgspec'] = None\n"
        "from webdataset.codecs.json_codec import json_dumps, json_loads, _encode\n"
        "assert _encode is None\n"
        "assert json_loads(b'[1, null, NaN]')[:2] == [1, None]\n"
        "assert json_dumps({'a': [1, None]}) == b'{\"a\":[1,null]}'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1,
        10**30,
        -1.5,
        1e300,
        "",
        "é\ud83d\ude00",
        "\ud800",
        [],
        {},
        [None],
        {"a": None},
        {"a": {"b": [1, (2, 3)]}},
    ]
    + [
        {1: "int", None: "none", False: "bool", 1.5: "float"},
        (1, 2),
        [[[[]]]],
        {"a": float("inf")},
        "hello",
        '"',
        "nan",
    ],
    ids=repr,
)
def test_json_values_come_back(value):
    """What is written reads back as what the standard library would have written."""
    assert json.loads(json_dumps(value)) == json.loads(json.dumps(value))


def test_json_of_nan_is_not_null():
    """NaN stays NaN, also in a value that msgspec would write as null."""
    assert math.isnan(json.loads(json_dumps([float("nan")]))[0])
    assert json.loads(json_dumps({"a": None, "b": float("inf")})) == {"a": None, "b": float("inf")}


def test_json_text_is_written_as_it_is_and_other_text_as_a_string():
    """A str that is JSON stays; one that is not becomes a JSON string instead of a field that cannot be read."""
    assert json_dumps('{"a": 1}') == b'{"a": 1}'
    assert json_dumps("hello") == b'"hello"'


def test_json_takes_numpy_numbers():
    """Numbers of numpy are numbers; arrays and what JSON has not are errors."""
    import numpy as np

    assert json_dumps({"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True)}) == b'{"a":0.5,"b":3,"c":true}'
    with pytest.raises(EncodingError, match="tolist"):
        json_dumps([np.zeros(3)])
    for value in (b"x", {1, 2}, object(), {"a": b"x"}, [1, {2}], __import__("datetime").date(2024, 1, 1)):
        with pytest.raises(TypeError):
            json_dumps(value)
    with pytest.raises(TypeError):
        json_dumps({(1, 2): 3})


@pytest.mark.parametrize("extension", ["mp", "msg", "msgpack", "cbor"])
def test_records(extension):
    """Msgpack and CBOR values come back; None is a value; damaged ones are errors."""
    from webdataset.codecs.encoder import default_handlers

    pytest.importorskip("cbor2" if extension == "cbor" else "msgspec")
    for value in (None, {"a": [1, 2.5, "é", b"\0", True]}, "text"):
        assert decode(extension, default_handlers[extension](value)) == value
    with pytest.raises(DecodingError):
        Decoder(["auto"])({extension: b"\x92\x01"})


@pytest.mark.parametrize("missing", [("msgpack", "mp"), ("cbor2", "cbor")], ids=str)
def test_missing_packages_are_named_with_their_extra(missing, tmp_path):
    """Where no library is installed, the error says which extra brings it, and which field wants it."""
    module, extension = missing
    program = (
        f"import sys; sys.modules['{module}'] = None; sys.modules['msgspec'] = None\n"
        "import webdataset as wds\n"
        "from webdataset.core.errors import MissingExtra\n"
        "try:\n"
        f"    wds.Decoder('auto')({{'__key__': 'k', '{extension}': b'1'}})\n"
        "except MissingExtra as error:\n"
        "    assert '[records]' in str(error) and error.key == 'k', error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("kind", [*COMPRESSORS, "zst"])
def test_compressed_bytes_come_back(kind):
    """One member, several, empty content; cut or damaged data is an error."""
    if kind == "zst":
        compress = pytest.importorskip("zstandard").compress
    else:
        compress = COMPRESSORS[kind]
    content = bytes(range(256)) * 40
    whole = compress(content)
    assert decompress(whole, kind) == content
    assert decompress(whole + whole, kind) == content * 2
    assert decompress(compress(b""), kind) == b""
    for damaged in (b"", whole[: len(whole) // 2], b"nonsense" + whole, whole + b"tail"):
        with pytest.raises(BadCompression):
            decompress(damaged, kind)
    with pytest.raises(BadCompression, match="limit"):
        decompress(whole, kind, limit_bytes=100)
    assert decompress(whole, kind, limit_bytes=len(content)) == content


def test_gzip_is_the_same_every_time():
    """No time stamp goes into a compressed field."""
    packed = compress_gzip(b"abc")
    assert packed[4:8] == b"\0\0\0\0"
    assert gzip.decompress(packed) == b"abc"
    assert decompress(packed + b"\0" * 100, "gz") == b"abc"
