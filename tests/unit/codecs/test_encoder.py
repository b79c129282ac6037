"""Encoders: the table, whole samples, what is passed through, compression, failures."""

import collections
import gzip
import json
import pickle
import warnings

import numpy as np
import pytest

from webdataset.autodecode import Decoder
from webdataset.codecs import (
    Encoder,
    add_handlers,
    default_handlers,
    encode_based_on_extension,
    encode_based_on_extension1,
    make_encoder,
    make_handlers,
    numpy_dumps,
    numpy_npz_dumps,
    torch_dumps,
)
from webdataset.codecs.compression import decompress
from webdataset.core.errors import EncodingError, UsageError


def encode(value, field):
    """Encode one field with the default table."""
    return encode_based_on_extension1(value, field, default_handlers)


@pytest.mark.parametrize("field", ["cls", "cls2", "class", "count", "index", "inx", "id", "a.CLS"])
def test_whole_numbers(field):
    """Every kind of whole number is written as its digits; anything else would not read back and is an error."""
    for value, written in ((3, b"3"), (-(10**20), b"-100000000000000000000"), (True, b"1"), (np.int64(4), b"4")):
        assert encode(value, field) == written
    assert encode(np.array(5), field) == b"5"
    assert encode(np.float32(6), field) == b"6"
    assert encode(7.0, field) == b"7"
    for value in (3.5, [1], None, np.zeros(2), float("nan"), float("inf"), object()):
        with pytest.raises(EncodingError, match=type(value).__name__):
            encode(value, field)


@pytest.mark.torch
def test_tensors_are_numbers():
    """A tensor of one whole number is written as its digits."""
    torch = pytest.importorskip("torch")
    assert encode(torch.tensor(3), "cls") == b"3"
    assert encode({"a": torch.tensor(1.5)}, "json") == b'{"a":1.5}'
    assert torch_dumps(torch.ones(1))[:2] == b"PK"
    with pytest.raises(EncodingError):
        encode(torch.ones(2), "cls")


@pytest.mark.parametrize("field", ["txt", "text", "transcript", "html", "htm"])
def test_text(field):
    """Text is UTF-8; what is no text is an error."""
    assert encode("é", field) == "é".encode()
    with pytest.raises(EncodingError, match="text must be str or bytes, not int"):
        encode(3, field)


@pytest.mark.parametrize("field", ["json", "cls", "jpg", "pyd", "npy", "unknown", "", "a.b.c"])
def test_bytes_are_written_as_they_are(field):
    """bytes, bytearray and memoryview pass, under every extension."""
    for value in (b"\xff\0", bytearray(b"\xff\0"), memoryview(b"\xff\0")):
        written = encode(value, field)
        assert written == b"\xff\0"
        assert type(written) is bytes


def test_text_is_written_as_it_is_where_text_is_meant():
    """A str becomes UTF-8 under unknown extensions and where the encoder wants other things."""
    for field in ("txt", "unknown", "cls", "srt"):
        assert encode("12", field) == b"12"


@pytest.mark.parametrize("field", ["json", "pyd", "pickle", "pkl", "mp", "msgpack", "cbor"])
def test_text_values_of_structured_formats_read_back(field):
    """A str under json, pickle, msgpack or CBOR is a value of that format, not a field that cannot be read."""
    if field in ("mp", "msgpack"):
        pytest.importorskip("msgspec")
    if field == "cbor":
        pytest.importorskip("cbor2")
    assert Decoder(["auto"])({field: encode("hello wörld", field)})[field] == "hello wörld"


def test_json_text_stays_as_it_is():
    """A str that is JSON already is the field."""
    assert encode('{"a": 1}', "json") == b'{"a": 1}'
    assert encode(b"not json", "json") == b"not json"


def test_gz_compresses_the_encoders_result():
    """A further .gz compresses, as often as it is named; compressed bytes are not compressed again."""
    assert gzip.decompress(encode({"a": 1}, "json.gz")) == b'{"a":1}'
    assert gzip.decompress(encode("h", "txt.gz")) == b"h"
    assert gzip.decompress(encode(b"raw", "bin.gz")) == b"raw"
    assert gzip.decompress(gzip.decompress(encode(5, "cls.gz.gz"))) == b"5"
    packed = gzip.compress(b"x")
    assert encode(packed, "txt.gz") == packed
    assert encode(5, "cls.gz") == encode(5, "cls.gz")
    assert Decoder(["auto"])({"json.gz": encode([1], "json.gz")})["json.gz"] == [1]


@pytest.mark.parametrize("kind", ["bz2", "xz", "zst"])
def test_other_compressions_compress_too(kind):
    """As gz: values, text and bytes; layers in the order named; what is compressed already stays; same bytes again."""
    if kind == "zst":
        pytest.importorskip("zstandard")
    for value, field in (({"a": 1}, "json"), ("text", "txt"), (b"raw", "bin"), (b"raw", "unknown")):
        name = f"{field}.{kind}"
        written = encode(value, name)
        assert written == encode(value, name)
        assert decompress(written, kind) == encode(value, field)
        assert encode(written, name) == written
    both = encode(5, f"cls.{kind}.gz")
    assert decompress(gzip.decompress(both), kind) == b"5"
    assert Decoder(["auto"])({f"cls.{kind}.gz": both}) == {f"cls.{kind}.gz": 5}
    mine = {kind: lambda value: b"mine"}
    assert Encoder(mine)({f"x.{kind}": 3}) == {f"x.{kind}": b"mine"}


def test_compressed_bytes_beyond_the_limits_are_not_compressed_twice(monkeypatch):
    """What may not be read under the present limits is still recognised as compressed."""
    bomb = gzip.compress(bytes(1_000_000))
    monkeypatch.setenv("WDS_MAX_FIELD_BYTES", "1000")
    assert encode(bomb, "bin.gz") == bomb


def test_metadata_passes():
    """Names starting with an underscore are not encoded."""
    sample = {"__key__": "k", "_meta": {"a": 1}, "cls": 3}
    assert Encoder()(sample) == {"__key__": "k", "_meta": {"a": 1}, "cls": b"3"}
    assert encode("x", "_meta") == "x"
    with pytest.raises(ValueError, match="must be text"):
        encode(3, "_meta")


def test_failures_name_key_field_and_type():
    """An error says which sample and field, what the value was and why."""
    for field, value, reason in (
        ("json", {1, 2}, "JSON has no values of type set"),
        ("json", np.longdouble(1), "JSON has no values of type longdouble"),
        ("mp", 2**70, "integers of 64 bits, not of 71"),
        ("npz", {"a\0b": np.zeros(1), "a": np.ones(1)}, "names without a NUL"),
        ("safetensors", {"__metadata__": np.zeros(1)}, "give the array another"),
        ("foo", 3, "no encoder for extension 'foo'.*int.*default_handlers"),
        ("npy", object(), "objects"),
    ):
        with pytest.raises(EncodingError, match=reason) as failure:
            Encoder()({"__key__": "007", field: value})
        assert (failure.value.key, failure.value.field) == ("007", field)
        assert "key='007'" in str(failure.value)


def test_an_encoder_that_returns_no_bytes_is_an_error():
    """What an encoder returns must be bytes; bytearray counts."""
    with pytest.raises(EncodingError, match="returned str instead of bytes"):
        Encoder({"x": str})({"x": 3})
    assert Encoder({"x": lambda value: bytearray(b"a")})({"x": 3}) == {"x": b"a"}


def test_the_table_is_live():
    """Encoders added to the default table are used by encoders that exist already."""
    encoder = make_encoder(True)
    with pytest.raises(EncodingError):
        encoder({"mine": 3})
    try:
        add_handlers(default_handlers, "mine other", lambda value: b"<%d>" % value)
        assert encoder({"mine": 3, "other": 4}) == {"mine": b"<3>", "other": b"<4>"}
    finally:
        del default_handlers["mine"], default_handlers["other"]


def test_make_encoder_understands_every_form():
    """True, False, None, dict, function; else an error."""
    sample = {"__key__": "k", "cls": 3, "x": 4}
    assert make_encoder(False)(sample) is sample
    assert make_encoder(None)(sample) is sample
    assert make_encoder({"x": lambda value: b"q"})(sample) == {"__key__": "k", "cls": b"3", "x": b"q"}
    assert make_encoder({"cls": lambda value: b"own", "x": bytes})(sample)["cls"] == b"own"
    assert make_encoder(len) is len
    with pytest.raises(ValueError, match="'rgb' is no encoder"):
        make_encoder("rgb")
    with pytest.raises(UsageError):
        make_encoder(3)


def test_add_handlers_takes_words_and_lists():
    """Extensions come as one string or a list."""
    table = {}
    add_handlers(table, "a b", 1)  # type: ignore[arg-type]
    add_handlers(table, ["c"], 2)  # type: ignore[arg-type]
    assert table == {"a": 1, "b": 1, "c": 2}


def test_the_table_has_every_extension():
    """All extensions of upstream's table, those that could be read but not written, and the formats added here."""
    wanted = """cls cls2 class count index inx id txt text transcript html htm pyd pickle pkl pth npy npz json jsn
        mp msgpack msg cbor jpg jpeg img image png pbm pgm ppm tif tiff webp
        avif gif bmp dib jpe jfif pnm yaml yml jsonl ndjson safetensors
        wav flac mp3 ogg opus m4a mp4 mov mkv webm avi"""
    assert set(wanted.split()) <= set(make_handlers())
    assert make_handlers() is not default_handlers


def test_encode_based_on_extension_encodes_a_sample():
    """Upstream's function: sample and table in, new sample out."""
    sample = {"__key__": "k", "cls": 3, "json": [1]}
    assert encode_based_on_extension(sample, default_handlers) == {"__key__": "k", "cls": b"3", "json": b"[1]"}
    assert sample["cls"] == 3


def test_samples_of_any_mapping_are_encoded_in_order():
    """The order of fields stays."""
    sample = collections.OrderedDict([("z.cls", 1), ("a.json", 2), ("__key__", "k")])
    assert list(Encoder()(sample)) == ["z.cls", "a.json", "__key__"]


def test_pickles_and_arrays():
    """The remaining encoders write what their libraries read."""
    assert pickle.loads(encode({"a": {1}}, "pyd")) == {"a": {1}}
    assert numpy_dumps(np.arange(3)) == encode(np.arange(3), "npy")
    assert numpy_npz_dumps({"a": np.arange(3)}) == encode({"a": np.arange(3)}, "npz")
    assert json.loads(encode({"a": None, "b": float("inf")}, "json")) == {"a": None, "b": float("inf")}


def test_names_are_bounded():
    """Any number of field names may come by."""
    from webdataset.codecs import encoder as module

    encoder = Encoder()
    for index in range(module._MOST_NAMES + 10):
        assert encoder({f"f{index}.cls": 1}) == {f"f{index}.cls": b"1"}
    assert len(encoder._names) <= module._MOST_NAMES


def test_encoders_pickle_and_say_what_they_are():
    """An encoder travels to other processes."""
    assert pickle.loads(pickle.dumps(Encoder()))({"cls": 1}) == {"cls": b"1"}
    assert repr(Encoder()) == "Encoder()"
    assert "bytes" in repr(Encoder({"x": bytes}))


def test_installed_packages_add_encoders(monkeypatch):
    """An extension in no table is looked up among the entry points."""
    from importlib.metadata import EntryPoint

    from webdataset.codecs import registry

    point = EntryPoint(name="plugged", value="builtins:bytes", group="webdataset.encoders")
    points = {"webdataset.encoders": [point]}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points.get(group, []))
    registry._find_entry_points.cache_clear()
    registry.find_plugin.cache_clear()
    try:
        assert encode([1, 2], "plugged") == b"\1\2"
    finally:
        registry._find_entry_points.cache_clear()
        registry.find_plugin.cache_clear()


def test_images_that_are_encoded_again_are_told_once():
    """Of samples that were read from a shard; new images, and bytes that were not decoded, are nobody's concern."""
    image = np.zeros((4, 4, 3), np.uint8)
    encoder = Encoder()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder({"__key__": "a", "jpg": image, "png": image})
        encoder({"__key__": "a", "__url__": "s.tar", "jpg": encode(image, "jpg"), "png": image})
    with pytest.warns(
        UserWarning, match="field 'x.jpg' of samples that were read from shards is encoded again"
    ) as caught:
        list(map(encoder, [{"__key__": "a", "__url__": "s.tar", "x.jpg": image}] * 3))
    assert len(caught) == 1


@pytest.mark.parametrize(
    "value", [{"1": 1, 1: 2}, [{"a": {True: 1, "true": 2}}], {None: 1, "null": 2}, {"x": ({1.5: 0, "1.5": 1},)}]
)
def test_keys_that_have_one_name_in_json(value):
    """Two keys that JSON would write as one name are refused: reading gives the last one only."""
    for field in ("json", "jsonl"):
        with pytest.raises(EncodingError, match="one name in JSON"):
            encode_based_on_extension({field: [value]}, default_handlers)
    assert json.loads(encode_based_on_extension({"json": {1: 1, "2": 2}}, default_handlers)["json"]) == {"1": 1, "2": 2}


@pytest.mark.parametrize("field", ["npy", "npz", "ten", "tenbin", "safetensors", "npy.gz", "x.npy"])
def test_text_is_no_array(field):
    """A text in the place of an array is refused: it would be written, and could not be read."""
    with pytest.raises(EncodingError, match="text is no content of"):
        encode_based_on_extension({field: "1 2 3"}, default_handlers)


@pytest.mark.parametrize("field", ["txt", "cls", "txt.gz", "html", "yaml"])
def test_half_of_a_surrogate_pair(field):
    """A text that UTF-8 cannot hold is an error of the field."""
    with pytest.raises(EncodingError) as caught:
        make_encoder(True)({"__key__": "a", field: "x\ud800"})
    assert (caught.value.key, caught.value.field) == ("a", field)


def test_half_of_a_surrogate_pair_in_json():
    """JSON has an escape for it."""
    assert json.loads(make_encoder(True)({"__key__": "a", "json": "x\ud800"})["json"]) == "x\ud800"
