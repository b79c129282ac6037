"""DALI without a GPU: tar shards with the index files of its ``wds2idx``, batches of 64 arrays of bytes, two threads.

It says no keys. The last batch of an epoch is filled with its last sample, which is not counted.
"""

import os
import subprocess
import sys
import tarfile

from nvidia.dali import fn, pipeline_def, types
from reader import Reader

BATCH = 64


def fields_of(shard):
    """Return the fields of a shard's first sample."""
    names, first = [], None
    with tarfile.open(shard) as archive:
        for member in archive:
            key, _, field = member.name.partition(".")
            if first not in (None, key):
                break
            first = key
            names.append(field)
    return names


def write_index(shard, path):
    """Write an index with DALI's command."""
    command = os.path.join(os.path.dirname(sys.executable), "wds2idx")
    done = subprocess.run([command, shard, path], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["wds2idx failed"])[-1])


@pipeline_def
def reading(shards, indexes, fields):
    """Read fields as bytes."""
    found = fn.readers.webdataset(
        paths=shards,
        index_paths=indexes,
        ext=fields,
        dtypes=[types.UINT8] * len(fields),
        missing_component_behavior="error",
        pad_last_batch=True,
        name="reader",
    )
    return tuple(found) if isinstance(found, list) else found


class Batches:
    """The batches of an epoch, as (number of samples, one list of arrays a field).

    Args:
        shards: paths.
        folder: where the index files go.
    """

    def __init__(self, shards, folder):
        os.makedirs(folder, exist_ok=True)
        indexes = [os.path.join(folder, f"{number}.idx") for number in range(len(shards))]
        for shard, index in zip(shards, indexes):  # noqa: B905  for old Pythons, too
            write_index(shard, index)
        self.fields = fields_of(shards[0])
        self.pipeline = reading(shards, indexes, self.fields, batch_size=BATCH, num_threads=2, device_id=None)
        self.pipeline.build()
        self.size = self.pipeline.epoch_size("reader")

    def __iter__(self):
        """Yield the batches of one epoch."""
        for begin in range(0, self.size, BATCH):
            number = min(BATCH, self.size - begin)
            outputs = self.pipeline.run()
            yield number, {name: output for name, output in zip(self.fields, outputs)}  # noqa: B905, C416


def count(batch):
    """Take the array of each field of each sample, and return how many samples there are."""
    number, outputs = batch
    for output in outputs.values():
        for place in range(number):
            output.at(place)
    return number


def samples(batch):
    """Yield the samples of a batch."""
    number, outputs = batch
    for place in range(number):
        yield None, {name: output.at(place).tobytes() for name, output in outputs.items()}


READERS = {"plain": Reader(Batches, count, samples)}
