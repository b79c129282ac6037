"""MosaicML Streaming: the shards converted into MDS files, StreamingDataset in this process.

It imports torchvision, whose wheel of the package index fits builds of torch for GPUs only, so that its environment has
none; nothing here uses it. ``transformers``, which it imports as well, looks for it and does without.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import transformers.utils  # noqa: F401  before torchvision seems to be there

for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = ModuleType(name)
vars(sys.modules["torchvision.datasets"]).update(VisionDataset=SimpleNamespace, CIFAR10=None)
vars(sys.modules["torchvision.transforms.functional"]).update(to_tensor=None)

from reader import Again, Reader, grouped, keyed  # noqa: E402
from streaming import MDSWriter, StreamingDataset  # noqa: E402


def convert(shards, folder):
    """Convert the shards into MDS files of 64 MB, its default."""
    sink: Any = None
    for sample in grouped(shards):
        if sink is None:
            columns = {name: "str" if name == "key" else "bytes" for name in sample}
            sink = MDSWriter(out=folder, columns=columns)
        sink.write(sample)
    sink.finish()


def plain(_shards, folder):
    """Return the samples in order, by the iterator that trainings use."""
    return StreamingDataset(local=folder, shuffle=False, batch_size=64)


def by_number(shards, folder):
    """Return the samples in order, by their numbers."""
    dataset = plain(shards, folder)
    return Again(lambda: (dataset[number] for number in range(len(dataset))))


READERS = {"plain": Reader(plain, None, keyed), "by_number": Reader(by_number, None, keyed)}
