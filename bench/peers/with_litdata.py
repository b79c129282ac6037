"""litdata: the shards converted into its chunks, StreamingDataset and StreamingDataLoader.

``drop_last`` is said, since its default depends on the number of ranks, and a state is refused where it differs. (With
``True`` samples are lost where the number of ranks changes.)
"""

import litdata
from tars import records


def same(record):
    """Return what goes into a chunk."""
    return record


def prepare(shards, folder):
    """Convert the shards into chunks of 1 MB."""
    litdata.optimize(
        fn=same,
        inputs=[{"key": key, "payload": payload} for key, payload in records(shards)],
        output_dir=folder,
        chunk_bytes="1MB",
        num_workers=1,
        verbose=False,
    )


def gathered(records):
    """Return the keys of a batch; as payloads are here, they need not be sent through torch's queue."""
    return [record["key"] for record in records]


def begin(job, states):
    """Return the loader, and what saves its state."""
    dataset = litdata.StreamingDataset(job["folder"], shuffle=True, drop_last=False, seed=1)
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=job["batch"], num_workers=job["workers"], collate_fn=gathered
    )
    if states:
        loader.load_state_dict(states[job["rank"] % len(states)])
    return loader, lambda _number: loader.state_dict()


def keys(batch):
    """Return the keys of a batch."""
    return batch
