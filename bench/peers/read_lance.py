"""Lance: the shards converted into one dataset of binary columns."""

import lance
import pyarrow as pa
from reader import Again, Reader, grouped, keyed

ROWS = 256


def convert(shards, folder):
    """Convert the shards into a Lance dataset."""
    samples = list(grouped(shards))
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    types = {name: pa.string() if name == "key" else pa.large_binary() for name in columns}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    lance.write_dataset(table, f"{folder}/data.lance", mode="overwrite")


def batches(_shards, folder):
    """Return Arrow batches."""
    dataset = lance.dataset(f"{folder}/data.lance")
    return Again(lambda: dataset.to_batches(batch_size=ROWS))


def plain(shards, folder):
    """Return the samples in order, as dictionaries."""
    opened = batches(shards, folder)
    return Again(lambda: (sample for batch in opened for sample in batch.to_pylist()))


def rows(batch):
    """Return the number of rows of a batch."""
    return batch.num_rows


def samples(batch):
    """Yield the samples of a batch."""
    for sample in batch.to_pylist():
        yield from keyed(sample)


READERS = {"plain": Reader(plain, None, keyed), "batches": Reader(batches, rows, samples)}
