"""Hugging Face datasets: tar shards as they are, streamed; pictures stay undecoded, json is always decoded."""

from datasets import Image, load_dataset
from reader import Reader


def plain(shards, _folder):
    """Return the samples in order."""
    dataset = load_dataset("webdataset", data_files={"train": shards}, split="train", streaming=True)
    for name, feature in (dataset.features or {}).items():
        if isinstance(feature, Image):
            dataset = dataset.cast_column(name, Image(decode=False))
    return dataset


def samples(sample):
    """Yield the sample; a picture comes in a dictionary of bytes and path."""
    fields = {name: value for name, value in sample.items() if not name.startswith("__")}
    yield (
        sample["__key__"],
        {name: value["bytes"] if name == "jpg" else value for name, value in fields.items() if value is not None},
    )


READERS = {"plain": Reader(plain, None, samples)}
