"""grain: the shards converted into ArrayRecord files, each record a pickled sample; read in order in this process."""

import glob
import pickle

import grain
from array_record.python.array_record_module import ArrayRecordWriter
from reader import Again, Reader, grouped, keyed


def convert(shards, folder):
    """Convert each shard into an ArrayRecord file, as grain's pages write them (``group_size:1``)."""
    for number, shard in enumerate(shards):
        sink = ArrayRecordWriter(f"{folder}/{number:04d}.array_record", "group_size:1")
        for sample in grouped([shard]):
            sink.write(pickle.dumps(sample))
        sink.close()


def plain(_shards, folder):
    """Return the samples in order."""
    source = grain.sources.ArrayRecordDataSource(sorted(glob.glob(f"{folder}/*.array_record")))
    dataset = grain.MapDataset.source(source).map(pickle.loads)
    return Again(dataset.to_iter_dataset)


READERS = {"plain": Reader(plain, None, keyed)}
