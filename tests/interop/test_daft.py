"""Daft: it reads our shards as rows."""

import pytest

daft = pytest.importorskip("daft")

# names that are no UTF-8, and members that are stored with holes
REFUSED = {"zoo not_utf8", "zoo sparse"}
# it ends at the first end mark, where two archives stand in one file
MISREAD = {"zoo joined"}


def as_bytes(value):
    """The payload of a field as Daft gives it: numbers and texts are parsed, media are files to open."""
    if hasattr(value, "open"):
        with value.open() as file:
            return file.read()
    return value if isinstance(value, bytes) else str(value).encode()


def read(path):
    """What Daft reads."""
    return [
        (row["__key__"], {
            field: as_bytes(value) for field, value in row.items() if not field.startswith("__") and value is not None
        })
        for row in daft.read_webdataset(str(path)).to_pylist()
    ]  # fmt: skip


def test_it_reads_our_shards(readable, name):
    """The same keys, fields and bytes, in order; what it refuses, it refuses aloud."""
    if name in REFUSED:
        with pytest.raises((ValueError, daft.exceptions.DaftCoreException)):
            read(readable.path)
        return
    assert (read(readable.path) == readable.samples) is (name not in MISREAD)
