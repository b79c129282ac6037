"""decode and xdecode as stages."""

import io
import pickle

import pytest

from webdataset.core.error_handlers import ignore_and_continue
from webdataset.core.errors import DecodingError, UnsafeContent, UsageError
from webdataset.stages.map import decode, decode_pickle, find_decoder, xdecode

SAMPLE = {"__key__": "k", "__url__": "a.tar", "cls": b"3", "txt": b"text"}


def test_decode_uses_the_basic_decoders():
    """By extension."""
    assert list(decode()([SAMPLE])) == [{**SAMPLE, "cls": 3, "txt": "text"}]
    assert list(decode(only="cls")([SAMPLE])) == [{**SAMPLE, "cls": 3}]


def test_decode_asks_functions_first():
    """f(key, bytes), key with its dot."""
    assert next(decode(lambda key, value: 7 if key == ".cls" else None)([SAMPLE]))["cls"] == 7


def test_decode_errors_name_everything():
    """Url, key, field, stage."""
    with pytest.raises(DecodingError) as caught:
        list(decode()([{**SAMPLE, "cls": b"x"}]))
    error = caught.value
    assert (error.url, error.key, error.field, error.stage) == ("a.tar", "k", "cls", "decode")
    assert list(decode(handler=ignore_and_continue)([{**SAMPLE, "cls": b"x"}, SAMPLE]))[0]["cls"] == 3


def test_decode_refuses_what_is_no_function():
    """At once when it starts."""
    with pytest.raises(UsageError, match="not 5"):
        list(decode(5)([SAMPLE]))  # type: ignore[arg-type]


def test_xdecode_gives_streams_to_functions():
    """Patterns and extensions; the last rule counts; metadata stays."""
    (sample,) = xdecode(("*.txt", lambda stream: stream.read()[:2]), cls=lambda stream: int(stream.read()))(
        [{**SAMPLE, "a/B.TXT": b"long"}]
    )
    assert sample == {"__key__": "k", "__url__": "a.tar", "cls": 3, "txt": b"te", "a/B.TXT": b"lo"}


def test_xdecode_leaves_fields_alone_when_told():
    """False leaves one; must_decode=False leaves all that no rule matches."""
    assert next(xdecode(cls=False)([SAMPLE]))["cls"] == b"3"
    with pytest.raises(DecodingError, match="'cls'") as caught:
        list(xdecode()([SAMPLE]))
    assert (caught.value.key, caught.value.stage) == ("k", "xdecode")
    assert next(xdecode(must_decode=False)([SAMPLE]))["cls"] == b"3"
    assert list(xdecode(handler=ignore_and_continue)([SAMPLE])) == []


def test_xdecode_pickles_pass_the_trust_rules():
    """Harmless values are read, code is not run."""
    assert next(xdecode()([{"pyd": pickle.dumps({"a": [1]})}])) == {"pyd": {"a": [1]}}
    with pytest.raises(UnsafeContent):
        decode_pickle(io.BytesIO(pickle.dumps(print)))


def test_find_decoder():
    """The last rule that matches the last component, with or without a dot."""
    rules = [("*.a", 1), ("b", 2), ("*.a", 3)]
    assert [find_decoder(rules, name) for name in ("x/Y.A", "a", "b", "c")] == [3, 3, 2, None]  # type: ignore[arg-type]
