"""Pipelines that need torch: loaders with and without workers, tensors. ``kit`` says what the names mean."""

import torch
from kit import attempt, dataset, keys, out, pipeline, shown

import webdataset as wds


def alone():
    """Let torch say which worker this is, not the environment."""
    import os

    for name in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"):
        os.environ.pop(name, None)


def loaded(source, workers, **kw):
    """A loader that passes on what the dataset gives."""
    alone()
    return wds.WebLoader(source, batch_size=None, num_workers=workers, **kw)


@pipeline
def loaded_samples():
    """Each sample once, whatever the number of workers, in the order in which workers take turns."""
    return {str(workers): keys(loaded(dataset(), workers)) for workers in (0, 1, 2, 3)}


@pipeline
def loaded_batches():
    """Batches made in workers."""
    source = dataset().decode("torchrgb8").to_tuple("seg.png", "cls", "txt").batched(4)
    return {str(workers): shown(list(loaded(source, workers))) for workers in (0, 2)}


@pipeline
def loaded_and_batched_anew():
    """Batches taken apart, shuffled by a generator and put together anew behind the loader, as the readme shows."""
    import random

    source = dataset().decode().to_tuple("cls", "txt").batched(4)
    return loaded(source, 2).unbatched().shuffle(9, rng=random.Random(3)).batched(6)


@pipeline
def loaded_epochs():
    """with_epoch and with_length on the loader."""
    loader = loaded(dataset(), 2).with_epoch(10).with_length(10)
    return {"len": len(loader), "epochs": [keys(loader) for _ in range(2)]}


@pipeline
def loaded_slices():
    """Slice and repeat on the loader."""
    return {"slice": keys(loaded(dataset(), 0).slice(5)), "repeat": keys(loaded(dataset("train-000"), 0).repeat(2))}


@pipeline
def loaded_by_torch():
    """A plain DataLoader over a dataset, collated by torch."""
    alone()
    source = dataset().decode().to_tuple("cls", "npy")
    return torch.utils.data.DataLoader(source, batch_size=5, num_workers=2)


@pipeline
def loaded_with_attributes():
    """Programs set attributes of their own on loaders and datasets."""
    loader = loaded(dataset(), 0)
    loader.num_batches, loader.num_samples = 3, 12
    source = dataset()
    source.classes = ["a", "b"]
    return {"loader": [loader.num_batches, loader.num_samples], "dataset": source.classes}


@pipeline
def loaded_by_more_workers_than_shards():
    """A worker without a shard."""
    return loaded(dataset("train-000"), 2)


@pipeline
def loaded_resampled():
    """Every worker draws shards of its own."""
    source = wds.WebDataset(dataset_urls(), resampled=True, shardshuffle=False).with_epoch(12)
    found = keys(loaded(source, 2))
    return {"count": len(found), "among": set(found) <= set(keys(dataset()))}


def dataset_urls():
    """The four good shards."""
    from kit import train

    return train()


@pipeline
def piped_datasets():
    """A dataset as the first stage of a pipeline."""
    return wds.DataPipeline(dataset("train-000"), wds.decode(), wds.to_tuple("cls"), wds.batched(4))


@pipeline
def wrapped_datasets():
    """FluidWrapper around a dataset."""
    return wds.FluidWrapper(dataset("train-000")).decode().to_tuple("cls").batched(4)


@pipeline
def decoded_to_tensors():
    """Every image specification of torch."""
    specs = ("torchl8", "torchrgb8", "torchrgba8", "torchl", "torchrgb", "torch", "torchrgba")
    return {spec: attempt(lambda: list(dataset("train-000").decode(spec).to_tuple("seg.png jpg"))) for spec in specs}


@pipeline
def batched_tensors():
    """Tensors are stacked."""
    return dataset().decode("torchrgb").to_tuple("seg.png", "cls").batched(7)


@pipeline
def written_tensors():
    """Pth fields, written and read back."""
    with wds.TarWriter(out("tensors.tar")) as sink:
        for index in range(3):
            value = {"a": torch.arange(index + 1), "b": [index, "x"]}
            sink.write({"__key__": f"{index}", "pth": value, "cls": index})
    return wds.WebDataset(out("tensors.tar"), shardshuffle=False).decode()


@pipeline
def mixed_datasets():
    """A mix with a length, loaded."""
    alone()
    mix = wds.RoundRobin([dataset("train-000"), dataset("train-001", "train-002")], longest=True)
    return keys(wds.WebLoader(mix, batch_size=None, num_workers=0))
