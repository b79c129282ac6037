"""Hugging Face datasets: its streaming ``webdataset`` builder reads our shards."""

import pytest

datasets = pytest.importorskip("datasets")

# what its builder refuses: samples whose first ones have other fields than the next, and names that Arrow cannot hold
REFUSED = {
    "zoo not_utf8", "zoo dots", "zoo mixed_case", "zoo empty_extension", "zoo space_in_extension", "zoo meta",
    "zoo no_extension", "zoo links", "zoo sparse", "zoo empty_payloads",
}  # fmt: skip
# it passes over hidden files, and over a second archive in a shard
MISREAD = {"zoo dotfile", "zoo joined"}


def as_bytes(value):
    """The payload of a field as the builder gives it: numbers and texts are decoded, pictures are not."""
    if isinstance(value, dict) and "bytes" in value:
        return value["bytes"]
    return value if isinstance(value, bytes) else str(value).encode()


def is_field(name, value):
    """Fields that a sample lacks come as None."""
    return not name.startswith("__") and value is not None


def read(path):
    """What the builder reads."""
    datasets.disable_progress_bars()
    found = datasets.load_dataset("webdataset", data_files={"train": [str(path)]}, streaming=True, split="train")
    return [
        (sample["__key__"], {name: as_bytes(value) for name, value in sample.items() if is_field(name, value)})
        for sample in found.decode(False)
    ]


def test_it_reads_our_shards(readable, name):
    """The same keys, fields and bytes; what it refuses, it refuses aloud."""
    if name in REFUSED:
        with pytest.raises((ValueError, EOFError)):
            read(readable.path)
        return
    assert (read(readable.path) == readable.samples) is (name not in MISREAD)
