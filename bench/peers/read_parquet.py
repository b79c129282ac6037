"""Hugging Face datasets: the shards converted into Parquet, streamed."""

import glob

import pyarrow as pa
import pyarrow.parquet
from datasets import load_dataset
from reader import Reader, grouped, keyed


def convert(shards, folder):
    """Convert each shard into a Parquet file, in row groups of 100 as pages of the hub advise for pictures."""
    for number, shard in enumerate(shards):
        samples = list(grouped([shard]))
        columns = {name: [sample[name] for sample in samples] for name in samples[0]}
        types = {name: pa.string() if name == "key" else pa.binary() for name in columns}
        table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
        pyarrow.parquet.write_table(table, f"{folder}/{number:04d}.parquet", row_group_size=100)


def plain(_shards, folder):
    """Return the samples in order."""
    files = sorted(glob.glob(f"{folder}/*.parquet"))
    return load_dataset("parquet", data_files={"train": files}, split="train", streaming=True)


READERS = {"plain": Reader(plain, None, keyed)}
