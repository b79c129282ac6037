"""The decoder: chains of handlers, names, failures, calls with datasets."""

import gzip
import pickle

import pytest

from webdataset.autodecode import (
    Continue,
    Decoder,
    basichandlers,
    decoders,
    default_decoder,
    gzfilter,
    handle_extension,
)
from webdataset.codecs.decoder import MOST_PLANS
from webdataset.codecs.handlers import CompressionFilter
from webdataset.core.errors import BadCompression, DecodingError, MissingExtra, UsageError

KEY = {"__key__": "k", "__url__": "s.tar"}


def shout(key, data):
    """Handle ``.loud`` only."""
    return data.decode().upper() if key.endswith(".loud") else None


class Picklable:
    """A class that pickles of this test name."""


def test_fields_decode_by_their_last_extension():
    """Each field goes to the decoder of its last extension; names and order stay."""
    sample = {**KEY, "a.cls": b" 4\n", "txt": "é".encode(), "json": b'{"a":[1]}', "x.unknown": b"raw"}
    decoded = Decoder([])(sample)
    assert decoded == {**KEY, "a.cls": 4, "txt": "é", "json": {"a": [1]}, "x.unknown": b"raw"}
    assert list(decoded) == list(sample)


def test_the_sample_given_is_not_changed():
    """Decoding makes a new dict."""
    sample = {**KEY, "cls": b"1"}
    assert Decoder([])(sample) is not sample
    assert sample["cls"] == b"1"


def test_metadata_becomes_text_where_it_is_utf8():
    """Names with two underscores are metadata: text, or left as they are; one underscore is an ordinary field."""
    sample = {"__key__": "k", "__a__": b"abc", "__b.json": b"5", "__c__": b"\xff", "__d__": 3, "_e.json": b"{}"}
    assert Decoder([])(sample) == {
        "__key__": "k",
        "__a__": "abc",
        "__b.json": "5",
        "__c__": b"\xff",
        "__d__": 3,
        "_e.json": {},
    }


def test_null_is_none_and_not_the_bytes():
    """A decoder of the table may return None: it is the value."""
    assert Decoder([])({**KEY, "json": b"null"})["json"] is None
    assert Decoder([])({**KEY, "json.gz": gzip.compress(b"null")})["json.gz"] is None


def test_a_handler_that_returns_none_has_not_handled():
    """None from a user's handler passes the field on."""
    asked = []
    decoded = Decoder([lambda key, data: asked.append((key, data)), shout])({**KEY, "loud": b"a", "x.cls": b"2"})
    assert decoded == {**KEY, "loud": "A", "x.cls": 2}
    assert asked == [(".loud", b"a"), (".x.cls", b"2")]


def test_handle_extension_passes_on_where_its_function_returns_none():
    """A function of one extension is a user's handler, too."""
    assert Decoder([handle_extension("json", lambda data: None)])({**KEY, "json": b"[]"})["json"] == []


@pytest.mark.parametrize("form", ["list", "tuple", "arguments"])
def test_several_handlers_in_every_form(form):
    """Handlers come as a list, a tuple or one by one."""
    one, two = handle_extension("one", lambda data: 1), handle_extension("two", lambda data: 2)
    decoder = {"list": lambda: Decoder([one, two]), "tuple": lambda: Decoder((one, two))}.get(
        form, lambda: Decoder(one, two)
    )()
    assert decoder({"one": b"", "two": b""}) == {"one": 1, "two": 2}


def test_upstreams_positional_arguments():
    """After a list of handlers come pre, post, only and partial by position."""
    decoder = Decoder([shout], [], [], "loud", True)
    assert decoder({"loud": b"a", "cls": b"1", "x": 3}) == {"loud": "A", "cls": b"1", "x": 3}
    with pytest.raises(UsageError):
        Decoder([], None, None, None, False, None)


def test_a_single_handler_or_spec_needs_no_list():
    """A lone function or image spec is one handler."""
    assert Decoder(shout)({"loud": b"a"}) == {"loud": "A"}
    with pytest.raises(ValueError, match="unknown image spec or format 'RGB'"):
        Decoder("RGB")


def test_called_with_a_dataset_it_decodes_every_sample_again_and_again():
    """The documented ``Decoder(...)(dataset)`` gives an iterable that may be iterated twice."""
    decoded = Decoder([])([{"cls": b"1"}, {"cls": b"2"}])
    assert list(decoded) == [{"cls": 1}, {"cls": 2}]
    assert list(decoded) == [{"cls": 1}, {"cls": 2}]
    assert next(iter(Decoder([])(iter([{"cls": b"3"}])))) == {"cls": 3}
    with pytest.raises(UsageError, match="not int"):
        Decoder([])(3)


def test_an_empty_sample_stays_empty():
    """The end mark that 1.0.2 sends between shards passes."""
    assert Decoder([])({}) == {}


def test_continue_goes_on_with_the_handlers_after_it():
    """Continue changes key and data for later handlers, never for earlier ones."""
    asked = []

    def first(key, data):
        asked.append(key)

    def second(key, data):
        return Continue(".cls", b"12") if key == ".foo" else None

    assert Decoder([first, second])({"foo": b"x"}) == {"foo": 12}
    assert asked == [".foo"]
    assert Decoder([lambda key, data: Continue("cls", b"7")])({"foo": b"x"}) == {"foo": 7}


def test_continue_cannot_go_back_to_decompression():
    """Pre handlers stand before a user's handler."""
    packed = gzip.compress(b"1")
    assert Decoder([lambda key, data: Continue(".cls.gz", data)])({"foo": packed}) == {"foo": packed}


def test_gz_is_unwrapped_as_often_as_it_is_named():
    """``.gz`` is taken off repeatedly; the field keeps its name; other handlers see the inner key."""
    once = gzip.compress(b"hi")
    asked = []
    sample = {"txt.gz": once, "txt.gz.gz": gzip.compress(once), "gz": once}
    decoded = Decoder([lambda key, data: asked.append(key)])(sample)
    assert decoded == {"txt.gz": "hi", "txt.gz.gz": "hi", "gz": b"hi"}
    assert asked == [".txt", ".txt", ""]


COMPRESSIONS = {"bz2": "bz2.compress", "xz": "lzma.compress", "zst": "zstandard.compress"}


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_other_compressions_are_unwrapped_and_asked_again(kind):
    """bz2, xz and zst fields decode as the field inside, images and nested ones included; the field keeps its name."""
    module, _, function = COMPRESSIONS[kind].partition(".")
    compress = getattr(pytest.importorskip(module), function)
    grey = b"P5 1 1 255 x"
    sample = {
        f"txt.{kind}": compress(b"b"),
        f"pgm.{kind}": compress(grey),
        f"json.gz.{kind}": compress(gzip.compress(b"null")),
        f"cls.{kind}.gz": gzip.compress(compress(b"3")),
        kind: compress(b"raw"),
    }
    decoded = Decoder("l8", kind)(sample)
    assert list(decoded) == list(sample)
    assert [decoded[f"txt.{kind}"], decoded[f"json.gz.{kind}"], decoded[f"cls.{kind}.gz"]] == ["b", None, 3]
    assert decoded[f"pgm.{kind}"].tolist() == [[ord("x")]]
    assert decoded[kind] == b"raw"
    with pytest.raises(DecodingError) as failure:
        Decoder("auto")({f"txt.{kind}": b"not compressed"})
    assert isinstance(failure.value.__cause__, BadCompression)


def test_a_users_own_reading_of_compressed_names_comes_first():
    """Handlers and table entries of a user's own see bz2, xz and zst fields as they are."""
    packed = b"any bytes"
    assert Decoder([handle_extension("txt.zst", len), "auto"])({"txt.zst": packed}) == {"txt.zst": 9}
    assert Decoder([handle_extension("bz2 xz", bytes), "auto"])({"txt.bz2": packed, "xz": packed})["txt.bz2"] == packed
    try:
        decoders["zst"] = len
        assert Decoder("auto")({"txt.zst": packed}) == {"txt.zst": 9}
    finally:
        del decoders["zst"]


def test_a_compression_filter_may_be_given():
    """A CompressionFilter of a user's own decides what is unwrapped, and when."""
    import bz2
    import lzma

    sample = {"txt.bz2": bz2.compress(b"b"), "txt.xz": lzma.compress(b"x")}
    assert Decoder([], pre=[CompressionFilter(".bz2", ".xz")])(sample) == {"txt.bz2": "b", "txt.xz": "x"}
    assert repr(CompressionFilter(".bz2", ".xz")) == "CompressionFilter('.bz2', '.xz')"


def test_only_decodes_the_named_fields():
    """``only`` compares whole names; other fields pass as they are, whatever they are."""
    sample = {**KEY, "cls": b"1", "x.cls": b"2", "other": None, "n": 3}
    for only in ("cls other.txt", ["cls", "other.txt"], {"cls"}):
        assert Decoder([], only=only)(sample) == {**KEY, "cls": 1, "x.cls": b"2", "other": None, "n": 3}


def test_partial_leaves_values_alone():
    """Values that are no bytes are errors, unless partial decoding is asked for; None always is one."""
    sample = {**KEY, "cls": 3, "txt": b"a"}
    assert Decoder([], partial=True)(sample) == {**KEY, "cls": 3, "txt": "a"}
    with pytest.raises(DecodingError, match="of type int, not bytes.*partial=True") as failure:
        Decoder([])(sample)
    assert (failure.value.url, failure.value.key, failure.value.field) == ("s.tar", "k", "cls")
    for decoder in (Decoder([]), Decoder([], partial=True)):
        with pytest.raises(DecodingError, match="None"):
            decoder({**KEY, "cls": None})


def test_buffers_are_bytes():
    """Bytearray and memoryview fields decode."""
    assert Decoder([])({"cls": bytearray(b"1"), "txt": memoryview(b"a")}) == {"cls": 1, "txt": "a"}


def test_failures_name_url_key_and_field_and_keep_their_cause():
    """A failure says where it was, carries the sample and chains what the decoder raised."""
    sample = {"__key__": "000", "__url__": "https://user:pw@host/s.tar?sig=1", "json": b"{"}
    with pytest.raises(DecodingError) as failure:
        Decoder([])(sample)
    error = failure.value
    assert isinstance(error.__cause__, ValueError)
    assert error.sample is sample
    assert (error.key, error.field, error.k) == ("000", "json", "json")
    assert "key='000'" in str(error)
    assert "field='json'" in str(error)
    assert "JSONDecodeError" in str(error)
    assert "pw" not in str(error)
    assert "sig=1" not in str(error)


@pytest.mark.limited
def test_damaged_gz_fields_are_errors():
    """A gz field that is none, is cut short or empty is an error."""
    whole = gzip.compress(b"x" * 1000)
    for data in (b"xx", whole[:-3], b"", whole + b"more"):
        with pytest.raises(DecodingError) as failure:
            Decoder([])({**KEY, "txt.gz": data})
        assert isinstance(failure.value.__cause__, BadCompression)


def test_the_table_of_decoders_is_live():
    """Entries set, replaced or removed take effect at the next sample, in decoders that exist already."""
    decoder = Decoder([])
    sample = {"mine": b"a", "cls": b"1"}
    assert decoder(sample) == {"mine": b"a", "cls": 1}
    original = decoders["cls"]
    try:
        decoders["mine"] = bytes.upper
        assert decoder(sample)["mine"] == b"A"
        decoders.update(cls=float)
        assert decoder(sample)["cls"] == 1.0
        del decoders["mine"]
        assert decoder(sample)["mine"] == b"a"
    finally:
        decoders.pop("mine", None)
        decoders["cls"] = original
    assert decoder(sample) == {"mine": b"a", "cls": 1}


def test_default_handlers_may_be_given_and_replaced():
    """Pre and post default to decompression and the table."""
    assert Decoder([], post=[])({"cls": b"1"}) == {"cls": b"1"}
    assert Decoder([], pre=[])({"txt.gz": b"x"}) == {"txt.gz": b"x"}
    assert Decoder([], pre=[gzfilter], post=[basichandlers])({"cls.gz": gzip.compress(b"1")}) == {"cls.gz": 1}


def test_decode1_takes_keys_with_and_without_dot():
    """One field, as upstream."""
    assert Decoder([]).decode1("cls", b"3") == 3
    assert Decoder([]).decode1(".cls", b"3") == 3
    assert Decoder([]).decode1("a.b", b"3") == b"3"


def test_the_default_decoder_decodes():
    """1.0.2's default_decoder."""
    assert default_decoder({"cls": b"1"}) == {"cls": 1}


def test_a_decoder_travels_with_its_safe_globals():
    """A pickled decoder works in another process, and brings the classes that were allowed."""
    from webdataset.codecs.pickle_allowlist import ADDED
    from webdataset.codecs.safe_pickle import add_safe_globals

    decoder = Decoder([shout], only="loud pyd")
    decoder({"loud": b"a"})
    with add_safe_globals([Picklable]):
        text = pickle.dumps(decoder)
    assert (Picklable.__module__, "Picklable") not in ADDED
    try:
        again = pickle.loads(text)
        assert (Picklable.__module__, "Picklable") in ADDED
    finally:
        ADDED.clear()
    assert again({"loud": b"a", "cls": b"1"}) == {"loud": "A", "cls": b"1"}


KEPT = {"a.yaml": b"a: 1", "json.zst": b"x", "jpg": b"x", "gz": b"x", "class": b"1"}


def test_bytes_are_kept_by_a_handler():
    """One handler keeps fields as the published versions left them, compressed ones too."""
    keeping = Decoder([handle_extension("yaml zst gz jpg class", bytes), "rgb auto"], pre=[])
    assert keeping({**KEPT, "cls": b"1"}) == {**KEPT, "cls": 1}


def test_bytes_are_kept_by_the_environment(monkeypatch):
    """Programs that parse some fields themselves run unchanged; their own handlers are asked as ever."""
    with pytest.raises(DecodingError):
        Decoder(["rgb"])({"jpg": b"x"})
    monkeypatch.setenv("WDS_KEEP_BYTES", ".yaml zst,JPG, gz class")
    assert Decoder("rgb auto")({**KEPT, "JPG": b"y", "cls": b"1"}) == {**KEPT, "JPG": b"y", "cls": 1}
    assert Decoder("rgb", "auto", handle_extension("a.yaml", len))(KEPT) == {**KEPT, "a.yaml": 4}
    assert basichandlers(".yaml", b"a: 1") is None
    assert gzfilter(".a.gz", b"x") is None


def test_plans_are_bounded():
    """Any number of field names may come by."""
    from webdataset.codecs import decoder as module

    decoder = Decoder([])
    for index in range(module.MOST_PLANS + 10):
        assert decoder({f"f{index}.cls": b"1"}) == {f"f{index}.cls": 1}
    assert len(decoder._plans) <= module.MOST_PLANS


def test_names_of_metadata_are_bounded():
    """Metadata that is no bytes stays as it is, under any number of names; a field that is none is still an error."""
    decoder = Decoder()
    for number in range(MOST_PLANS + 10):
        sample = {"__key__": "k", f"__m{number}__": number, "txt": b"t"}
        assert decoder.decode(sample) == {**sample, "txt": "t"}
    assert len(decoder._metadata) == MOST_PLANS
    with pytest.raises(DecodingError, match="int"):
        decoder.decode({"__key__": "k", "cls": 5})


def test_its_repr_names_its_handlers():
    """A decoder in a pipeline says what it decodes."""
    assert "ImageHandler('rgb')" in repr(Decoder("rgb"))


def test_a_cause_without_words_is_named():
    """Some libraries raise errors that say nothing: the message names their class."""

    def silent(key, data):
        raise KeyError

    with pytest.raises(DecodingError, match=r"could not be decoded: KeyError\(\)"):
        Decoder([silent])({"x": b""})


NEW_KINDS = {
    "yaml": b"\xff: [", "jsonl": b"{", "tenbin": b"x", "safetensors": b"x", "msgpack": b"\x92\x01", "html": b"<p>",
    "class": b"3", "txt.zst": b"x", "txt.bz2": b"x", "avif": b"x", "img": b"x", "x.yml": b"- a",
}  # fmt: skip


@pytest.mark.parametrize("handlers", [(), ("rgb",), (shout,)], ids=["none", "images", "own"])
def test_formats_that_no_published_version_decodes_stay_bytes(handlers):
    """Passes over shards whose programs parse such fields run as before, damaged fields included."""
    assert Decoder(list(handlers))({**KEY, **NEW_KINDS}) == {**KEY, **NEW_KINDS}


@pytest.mark.parametrize("field", sorted({*NEW_KINDS} - {"html", "class", "x.yml"}))
def test_formats_that_are_asked_for_are_decoded(field):
    """By ``auto`` or by their names; what is damaged is an error then."""
    for handlers in (["rgb", "auto"], ["rgb", field.rpartition(".")[2]], [f"rgb {field.rpartition('.')[2]}"]):
        with pytest.raises((DecodingError, MissingExtra)):
            Decoder(handlers)({**KEY, field: NEW_KINDS[field]})


def test_formats_may_be_named_in_one_word_list():
    """Names stand alone, in one string, and beside handlers; only what is named is decoded."""
    sample = {"yaml": b"- a", "jsonl": b"1\n2\n", "html": b"<p>"}
    assert Decoder("yaml jsonl")(sample) == {"yaml": ["a"], "jsonl": [1, 2], "html": b"<p>"}
    assert Decoder("html", shout)({**sample, "loud": b"a"}) == {**sample, "html": "<p>", "loud": "A"}
    assert pickle.loads(pickle.dumps(Decoder("yaml")))(sample)["yaml"] == ["a"]
    with pytest.raises(UsageError, match="name an image spec too"):
        Decoder("avif")


@pytest.mark.parametrize("sample", [(b"1", b"2"), [b"1"], b"1"])
def test_what_is_no_dict_is_refused(sample):
    """Tuples, as after to_tuple, have no names to decode by: the error says where decode stands."""
    with pytest.raises(UsageError, match="decode takes samples that are dicts, and got .*: write it before to_tuple"):
        Decoder().decode(sample)
