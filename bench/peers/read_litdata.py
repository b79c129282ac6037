"""litdata: the shards converted into its chunks, StreamingDataset in this process."""

import litdata
from reader import Reader, grouped, keyed


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


READERS = {"plain": Reader(plain, None, keyed)}
