"""Handlers on their own: by extension, by table, decompression; plug-ins and tables."""

import gzip
import random
import sys
from importlib.metadata import EntryPoint

import pytest

from webdataset.autodecode import basichandlers, call_extension_handler, gzfilter, handle_extension
from webdataset.codecs import compression as compressed_module
from webdataset.codecs import handlers, registry
from webdataset.codecs.compression import compress_field, decompress, is_compressed
from webdataset.codecs.handlers import CompressionFilter, is_key_handler
from webdataset.codecs.images import ImageHandler
from webdataset.core.errors import BadCompression


@pytest.mark.parametrize(
    ("key", "matches"),
    [(".a.seg.JPG", True), (".seg.jpg", True), ("seg.jpg", True), (".png", True), (".x.png", True)]
    + [(".jpg", False), (".xseg.jpg", False), (".xpng", False), (".png.x", False), ("", False)],
)
def test_extensions_match_by_components(key, matches):
    """Whole components from the end, without regard to case."""
    handler = handle_extension("seg.jpg png", len)
    assert handler(key, b"four") == (4 if matches else None)
    assert (handler.claim(key) is not None) == matches
    assert call_extension_handler(key, b"four", len, ["seg.jpg", "png"]) == (4 if matches else None)


def test_basichandlers_decode_by_the_table():
    """The post handler is callable as upstream's."""
    assert basichandlers(".cls", b"4") == 4
    assert basichandlers("cls", b"4") == 4
    assert basichandlers(".nothing", b"4") is None
    assert basichandlers(".CLS", b"4") is None


def test_gzfilter_continues_under_the_inner_key():
    """The pre handler is callable as upstream's."""
    answer = gzfilter(".x.gz", gzip.compress(b"e"))
    assert (answer.key, answer.data) == (".x", b"e")
    assert gzfilter(".x", b"") is None


@pytest.mark.limited
def test_decompression_is_limited():
    """A field may not grow beyond the limit: a bomb is an error at the limit, not at its end."""
    bomb = gzip.compress(b"\0" * 10_000_000)
    with pytest.raises(BadCompression, match="limit of 1000"):
        CompressionFilter(".gz", limit_bytes=1000)(".x.gz", bomb)
    assert len(CompressionFilter(".gz", limit_bytes=10_000_000)(".x.gz", bomb).data) == 10_000_000


def test_handlers_that_decide_by_key_say_so():
    """All of ours have ``claim``; a plain function has not."""
    for handler in (basichandlers, gzfilter, handle_extension("a", len), ImageHandler("rgb")):
        assert is_key_handler(handler)
    assert not is_key_handler(lambda key, data: None)


def test_a_live_table_counts_every_change():
    """Every way to change a dict is counted; reading is not."""
    table, before = registry.LiveTable(), registry.LiveTable.changes
    changes = [
        lambda: table.__setitem__("a", 1),
        lambda: table.update(b=2),
        lambda: table.setdefault("c", 3),
        lambda: table.__ior__({"d": 4}),
        lambda: table.__delitem__("a"),
        lambda: table.pop("b"),
        lambda: table.popitem(),
        lambda: table.clear(),
    ]
    for count, change in enumerate(changes, 1):
        change()
        assert registry.LiveTable.changes == before + count
    assert not table
    assert table.get("a") is None
    assert registry.LiveTable.changes == before + len(changes)


def test_installed_packages_add_decoders(monkeypatch):
    """An extension in no table is looked up among the entry points, once."""
    point = EntryPoint(name="plugged", value="builtins:len", group="webdataset.decoders")
    calls = []

    def found(group):
        calls.append(group)
        return [point]

    monkeypatch.setattr("importlib.metadata.entry_points", found)
    registry._find_entry_points.cache_clear()
    registry.find_plugin.cache_clear()
    try:
        assert basichandlers(".plugged", b"four") == 4
        assert basichandlers(".plugged", b"four") == 4
        assert basichandlers(".cls", b"4") == 4
        assert calls == ["webdataset.decoders"]
    finally:
        registry._find_entry_points.cache_clear()
        registry.find_plugin.cache_clear()


def test_deferred_codecs_load_at_first_use():
    """A deferred codec imports its module when it is first called, and pickles by name."""
    import pickle

    deferred = registry.LazyCodec("numpy_arrays", "npy_loads")
    assert deferred._function is None
    again = pickle.loads(pickle.dumps(deferred))
    assert repr(again) == "LazyCodec(numpy_arrays.npy_loads)"
    assert again.resolve() is sys.modules["webdataset.codecs.numpy_arrays"].npy_loads


def test_each_decoder_has_a_parser_of_its_own():
    """What parses JSON is made for each decoder, also after pickling; the table's entry works by itself."""
    import pickle

    entry = handlers.decoders["json"]
    for each in (entry, pickle.loads(pickle.dumps(entry))):
        first, second = each.resolve(), each.resolve()
        assert first is not second
        assert first(b"[1]") == second(b"[1]") == each(b"[1]") == [1]


def test_a_field_may_grow_to_the_setting(monkeypatch):
    """WDS_MAX_FIELD_BYTES bounds every compressed field, and is named when it is passed."""
    packed = gzip.compress(bytes(100_000))
    assert len(gzfilter(".bin.gz", packed).data) == 100_000
    monkeypatch.setenv("WDS_MAX_FIELD_BYTES", "99_999")
    with pytest.raises(BadCompression, match="WDS_MAX_FIELD_BYTES"):
        gzfilter(".bin.gz", packed)
    assert CompressionFilter(".gz", limit_bytes=100_000)(".bin.gz", packed) is not None


@pytest.mark.limited
def test_values_much_larger_than_their_bytes_get_less_room(monkeypatch):
    """Inside JSON and its like a field may grow fiftyfold, or to a small size; inside arrays further."""
    monkeypatch.setattr(handlers, "_GROWING_BYTES", 10_000)
    packed = gzip.compress(b"[" + b"{}," * 50_000 + b"{}]")
    assert len(packed) * 50 < 150_000
    for extension in ("json", "jsonl", "yaml", "msgpack", "cbor", "pyd"):
        with pytest.raises(BadCompression, match="grows beyond"):
            gzfilter(f".{extension}.gz", packed)
        with pytest.raises(BadCompression, match="grows beyond"):
            gzfilter(f".{extension}.gz.gz", gzip.compress(packed))
    for extension in ("txt", "npy", "bin"):
        assert len(gzfilter(f".{extension}.gz", packed).data) == 150_004
    honest = gzip.compress(str(list(range(20_000))).encode())
    assert gzfilter(".json.gz", honest).data.startswith(b"[0, 1, 2")


@pytest.mark.limited
@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst", "sized zst"])
def test_bombs_end_at_the_free_size(kind, monkeypatch):
    """Beyond what is free, a field that has grown more than a hundredfold is a bomb, long before the limit."""
    content = bytes(3_000_000)
    if kind.endswith("zst"):
        zstandard = pytest.importorskip("zstandard")
        packed = zstandard.ZstdCompressor(write_content_size=kind != "zst").compress(content)
    else:
        packed = compress_field(content, kind)
    name = kind.rpartition(" ")[2]
    assert decompress(packed, name) == content
    monkeypatch.setattr(compressed_module, "FREE_BYTES", 500_000)
    monkeypatch.setattr(compressed_module, "_SMALL", 100)
    with pytest.raises(BadCompression, match="bomb"):
        decompress(packed, name)
    noise = random.Random(0).randbytes(1_000_000)
    assert decompress(compress_field(noise, name), name) == noise
    assert is_compressed(packed, name)
