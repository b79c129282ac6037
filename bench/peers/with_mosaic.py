"""MosaicML Streaming: the shards converted into MDS, StreamingDataset and StreamingDataLoader.

The state is that of rank zero, for all ranks, as its pages say.
"""

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from tars import records


def prepare(shards, folder):
    """Convert the shards into MDS files of 1 MB."""
    with MDSWriter(out=folder, columns={"key": "str", "payload": "bytes"}, size_limit=1 << 20) as sink:
        for key, payload in records(shards):
            sink.write({"key": key, "payload": payload})


def begin(job, states):
    """Return the loader, and what saves its state."""
    dataset = StreamingDataset(
        local=job["folder"], shuffle=True, shuffle_seed=1, batch_size=job["batch"], num_canonical_nodes=1
    )
    loader = StreamingDataLoader(dataset, batch_size=job["batch"], num_workers=job["workers"])
    if states:
        loader.load_state_dict(states[0])
    return loader, lambda _number: loader.state_dict()


def keys(batch):
    """Return the keys of a batch."""
    return list(batch["key"])
