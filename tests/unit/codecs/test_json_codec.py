"""Lines of JSON."""

import pytest

from webdataset.autodecode import Decoder
from webdataset.codecs import default_handlers, encode_based_on_extension1
from webdataset.core.errors import DecodingError, EncodingError


def encode(value, field="jsonl"):
    """Encode one field with the default table."""
    return encode_based_on_extension1(value, field, default_handlers)


@pytest.mark.parametrize("field", ["jsonl", "ndjson", "x.jsonl", "jsonl.gz"])
def test_values_come_back(field):
    """A list of any JSON values, text that looks like JSON included."""
    values = [1, None, "1", "null", {"a": "é\u2028\n"}, [], 10**30, "[", ""]
    assert Decoder(["auto"])({field: encode(values, field)})[field] == values


def test_lines_are_lines():
    """One value a line; CR LF, blank lines, a mark of UTF-8 and a last line without end are read."""
    assert encode(iter([1, {"a": 2}])) == b'1\n{"a":2}\n'
    decoded = Decoder(["auto"])({"jsonl": b'\xef\xbb\xbf1\r\n\n  \r\n{"a": 2}', "ndjson": b""})
    assert decoded == {"jsonl": [1, {"a": 2}], "ndjson": []}
    assert encode('{"as": "it is"}') == b'{"as": "it is"}'


def test_errors_name_the_line():
    """The number counts all lines from 1."""
    for data, line in ((b"1\n\n{bad}\n", 3), (b"[", 1), (b"1\n2 3", 2), (b'"\xff"', 1), (b"1\n" + b"[" * 100_000, 2)):
        with pytest.raises(DecodingError, match=f"line {line} is not JSON") as failure:
            Decoder(["auto"])({"__key__": "k", "jsonl": data})
        assert (failure.value.key, failure.value.field) == ("k", "jsonl")


def test_what_is_no_list_is_an_error():
    """A dict, a number or None is not lines; neither are values that JSON does not have."""
    for value in ({"a": 1}, 3, None, [{1, 2}]):
        with pytest.raises(EncodingError):
            encode(value)
