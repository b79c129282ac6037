"""litdata: the shards converted into its chunks, StreamingDataset in this process.

Its fields are memory views of the mapped file: nothing is read of them until they are used, or copied.
"""

import litdata
from reader import Again, Reader, grouped, keyed


def same(record):
    """Return what goes into a chunk."""
    return record


def convert(shards, folder):
    """Convert the shards into chunks of 64 MB, its default."""
    samples = list(grouped(shards))
    litdata.optimize(
        fn=same,
        inputs=samples,
        output_dir=folder,
        chunk_bytes="64MB",
        num_workers=1,
        verbose=False,
        start_method="fork",
    )


def plain(_shards, folder):
    """Return the samples in order."""
    return litdata.StreamingDataset(folder, shuffle=False, drop_last=False)


def copied(shards, folder):
    """Return the samples in order, with each field copied out of the mapped file."""
    dataset = plain(shards, folder)
    return Again(lambda: map(copy_fields, dataset))


def copy_fields(sample):
    """Return a sample whose memory views are bytes."""
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in sample.items()}


READERS = {"plain": Reader(plain, None, keyed), "copied": Reader(copied, None, keyed)}
