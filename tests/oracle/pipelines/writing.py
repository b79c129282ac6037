"""Pipelines that write. Each leaves shards in ``out(...)``, which the other versions read back."""

import gzip
import io
import os

import numpy as np
from kit import attempt, dataset, keys, listing, out, pipeline, scratch, shards, shown
from PIL import Image

import webdataset as wds

ARRAY = np.arange(12, dtype="float32").reshape(3, 4)
PICTURE = (np.arange(48, dtype="uint8") * 5).reshape(4, 4, 3)
SAMPLES = [
    {"__key__": f"d/{index:03d}", "txt": f"text {index}", "cls": index, "mp": {"n": [index, None, 1.5]},
     "npy": ARRAY + index, "seg.png": PICTURE + index, "bin": bytes([index] * 700)}
    for index in range(7)
]  # fmt: skip


def written(name, samples, *, place=out, **kw):
    """The members of a shard with these samples."""
    with wds.TarWriter(place(name), **kw) as sink:
        sizes = [sink.write(sample) for sample in samples]
    return {"sizes": sizes, "members": listing(place(name))}


@pipeline
def written_with_encoders():
    """Every basic kind of value."""
    return written("encoded.tar", SAMPLES)


@pipeline
def written_json():
    """JSON by value, and as text."""
    values = {"dict": {"a": [1, None, 2.5]}, "text": "text", "bytes": b"[1]", "accents": ["\u00e9"], "number": 3}
    return {
        name: attempt(lambda: written(f"json-{name}.tar", [{"__key__": "k", "json": value}]))
        for name, value in values.items()
    }


@pipeline
def written_compressed():
    """Compressed gz by the name and by the argument; bz2 and xz by the name."""
    return {kind: attempt(lambda: written(f"packed.tar.{kind}", SAMPLES)) for kind in ("gz", "bz2", "xz")}


@pipeline
def written_compressed_by_argument():
    """compress=True."""
    found = written("packed.dat", SAMPLES, compress=True)
    with gzip.open(out("packed.dat")) as stream:
        return {**found, "gz": len(stream.read()) > 0}


@pipeline
def written_with_an_owner():
    """user, group and mode of the members."""
    return written("owned.tar", SAMPLES[:2], user="me", group="us", mode=0o600)


@pipeline
def written_without_encoders():
    """encoder=False takes bytes, and nothing else."""
    raw = [{"__key__": "a", "txt": b"1", "any.thing": b"2"}, {"__key__": "b", "txt": bytearray(b"3")}]
    return {
        "bytes": attempt(lambda: written("raw.tar", raw, encoder=False)),
        "text": attempt(
            lambda: written("raw-text.tar", [{"__key__": "a", "txt": "text"}], place=scratch, encoder=False)
        ),
    }


@pipeline
def written_by_a_table():
    """A dict of encoders."""
    samples = [{"__key__": "a", "txt": "one", "n": 5}]
    return written("table.tar", samples, encoder={"txt": lambda text: text.upper().encode(), "n": lambda n: b"%d" % n})


@pipeline
def written_by_a_function():
    """An encoder for whole samples."""

    def encoded(sample):
        return {"__key__": sample["__key__"], "x": repr(sorted(sample)).encode()}

    return written("function.tar", SAMPLES[:2], encoder=encoded)


@pipeline
def written_with_meta():
    """keep_meta writes fields that begin with an underscore."""
    samples = [{"__key__": "a", "txt": "1", "_note": "kept?"}]
    return {str(keep): attempt(lambda: written(f"meta-{keep}.tar", samples, keep_meta=keep)) for keep in (False, True)}


@pipeline
def written_every_extension():
    """A value for every extension that has an encoder, each for itself."""
    picture = Image.fromarray(PICTURE)
    values = {
        "cls": 3, "cls2": 4, "class": 5, "count": 6, "index": 7, "inx": 8, "id": 9, "txt": "t", "text": "t",
        "transcript": "t", "html": "<p>", "htm": "<p>", "pyd": {"a": 1}, "npy": ARRAY, "npz": {"a": ARRAY},
        "json": [None], "jsn": {"a": "b"}, "mp": {"a": [1]}, "msg": [2], "msgpack": [3], "cbor": {"a": [1]},
        "png": PICTURE, "ppm": PICTURE, "pgm": PICTURE[:, :, 0], "pbm": PICTURE[:, :, 0], "tif": PICTURE,
        "tiff": picture, "jpg": PICTURE, "jpeg": picture, "img": PICTURE, "image": PICTURE, "txt.gz": "zipped",
        "ten": [ARRAY], "tb": [ARRAY],
    }  # fmt: skip
    unstable = ("pyd", "npz", "txt.gz", "jpg", "jpeg", "img", "image", "png", "tif", "tiff")

    def one(extension, value):
        found = written(f"ext-{extension}.tar", [{"__key__": "k", extension: value}])
        if extension in unstable:  # the same value, not the same bytes: compared when read back
            found = [entry[0] for entry in found["members"]]
        return found

    return {extension: attempt(lambda: one(extension, value)) for extension, value in values.items()}


@pipeline
def written_and_read_back():
    """What is written is what is read."""
    written("back.tar", SAMPLES)
    return wds.WebDataset(out("back.tar"), shardshuffle=False).decode("rgb8")


@pipeline
def written_values_that_cannot_be():
    """Values that no encoder takes."""
    wrong = {"no-key": {"txt": "1"}, "unknown": {"__key__": "a", "xyz": 5}, "number": {"__key__": 5, "txt": "1"},
             "picture": {"__key__": "a", "png": object()}}  # fmt: skip
    return {
        name: attempt(lambda: written(f"wrong-{name}.tar", [sample], place=scratch)) for name, sample in wrong.items()
    }


@pipeline
def written_to_a_stream():
    """A file object is written and left open."""
    stream = io.BytesIO()
    with wds.TarWriter(stream) as sink:
        for sample in SAMPLES:
            sink.write(sample)
    with open(out("stream.tar"), "wb") as file:
        file.write(stream.getvalue())
    return {"closed": stream.closed, "members": listing(out("stream.tar"))}


@pipeline
def written_to_a_command():
    """pipe: urls."""
    path = out("piped.tar")
    with wds.TarWriter(f"pipe:cat > {path}") as sink:
        sink.write(SAMPLES[0])
    return {"members": listing(path)}


@pipeline
def written_in_shards():
    """ShardWriter by count, with a hook, numbered from a start."""
    done = []
    place = out("by-count")
    os.makedirs(place)
    with wds.ShardWriter(place + "/s-%03d.tar", maxcount=3, start_shard=5, verbose=0, post=done.append) as sink:
        for sample in SAMPLES:
            sink.write(sample)
    names = sorted(os.listdir(place))
    return {"done": shown(done), "shards": {name: listing(f"{place}/{name}") for name in names}, "total": sink.total}


@pipeline
def written_in_shards_by_size():
    """ShardWriter by bytes."""
    place = out("by-size")
    os.makedirs(place)
    with wds.ShardWriter(place + "/s-%03d.tar", maxsize=2000, verbose=0, encoder=False) as sink:
        for index in range(8):
            sink.write({"__key__": f"{index}", "bin": bytes(600 + index)})
    return {name: [entry[0] for entry in listing(f"{place}/{name}")] for name in sorted(os.listdir(place))}


@pipeline
def written_in_no_shards():
    """A ShardWriter that nothing is given."""
    place = scratch("unused")
    os.makedirs(place)
    with wds.ShardWriter(place + "/s-%03d.tar", verbose=0):
        pass
    return {"shards": sorted(os.listdir(place))}


@pipeline
def written_by_a_writer_that_fails():
    """What an exception leaves behind."""
    path = scratch("failed.tar")

    def failing():
        with wds.TarWriter(path) as sink:
            sink.write(SAMPLES[0])
            raise RuntimeError

    return {"raised": attempt(failing), "there": os.path.exists(path)}


@pipeline
def written_from_a_dataset():
    """Shards made of shards: chosen, decoded, renamed and written again."""
    source = (
        dataset().decode().select(lambda sample: sample["cls"] % 3 == 0).rename(label="cls", text="txt", keep=False)
    )
    samples = [{"__key__": f"{index}", "label.cls": s["label"], "txt": s["text"]} for index, s in enumerate(source)]
    return written("again.tar", samples)


@pipeline
def written_once_more():
    """Raw samples of every shard go through unchanged."""
    names = ("train-000", "train-001", "long")
    samples = [{k: v for k, v in s.items() if k in ("__key__",) or k[:2] != "__"} for s in dataset(*names)]
    found = written("raw-again.tar", samples, encoder=False)
    return {**found, "equal": keys(wds.WebDataset(out("raw-again.tar"), shardshuffle=False)) == keys(dataset(*names))}


@pipeline
def dumped():
    """numpy_dumps gives what numpy loads."""
    return {"array": shown(np.load(io.BytesIO(wds.numpy_dumps(ARRAY)))), "shards": len(shards("upper"))}
