"""This library: tar shards as they are, a shuffle buffer, states of each rank merged where the ranks change."""

from webdataset import Loader, WebDataset, merge_states

STREAMS = 24


def key(sample):
    """Return a sample's key; its payload was read with it."""
    return sample["__key__"]


def begin(job, states):
    """Return the batches, and what saves the state."""
    dataset = WebDataset(job["shards"], shardshuffle=100, seed=1).shuffle(job["buffer"]).map(key).elastic(STREAMS)
    loader = Loader(dataset, job["batch"], workers=job["workers"], mode="processes")
    if len(states) == job["ranks"]:
        loader.load_state_dict(states[job["rank"]])
    elif states:
        loader.load_state_dict(merge_states(states))
    return loader, lambda _number: loader.state_dict()


def keys(batch):
    """Return the keys of a batch."""
    return [str(each) for each in batch]
