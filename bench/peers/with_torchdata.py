"""webdataset 1.0.2 in torchdata's StatefulDataLoader, which skips the batches that were delivered.

That takes the same order again, so the shuffles have to be the deterministic ones. The variant ``plain`` has the
shuffles that webdataset's own pages show, with a seed for the shards. There is one state for each rank and nothing that
merges them: a rank takes that of the rank it was, or of one of those that were there.
"""

from torchdata.stateful_dataloader import StatefulDataLoader

import webdataset as wds


def key(sample):
    """Return a sample's key; its payload was read with it."""
    return sample["__key__"]


def begin(job, states):
    """Return the loader, and what saves its state."""
    plain = job["variant"] == "plain"
    dataset = wds.WebDataset(
        job["shards"], shardshuffle=100, detshuffle=not plain, seed=1, nodesplitter=wds.split_by_node
    )
    if plain:
        dataset = dataset.shuffle(job["buffer"])
    else:
        dataset = dataset.compose(wds.detshuffle(bufsize=job["buffer"], initial=job["buffer"], seed=1))
    dataset = dataset.map(key).batched(job["batch"], collation_fn=list)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=job["workers"])
    if states:
        loader.load_state_dict(states[job["rank"] % len(states)])
    return loader, lambda _number: loader.state_dict()


def keys(batch):
    """Return the keys of a batch."""
    return batch
