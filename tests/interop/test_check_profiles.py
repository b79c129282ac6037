"""``check --profile``: what it predicts of other readers is what they do, shape by shape."""

import dataclasses
import json
import logging
import tarfile

import pytest

import webdataset as wds
from support import reader_shapes
from webdataset.inspection.check import check_shards

SHAPES = reader_shapes.shapes()
HIDDEN = ("__key__", "__url__")


def predicted(name, paths):
    """``refused``, ``differs`` or ``same``."""
    counts = check_shards([str(path) for path in paths], profiles=[name], digests=False).counts
    if counts.get(f"refused-{name}"):
        return "refused"
    return "differs" if counts.get(f"differs-{name}") else "same"


def ours(paths):
    """Keys and fields as this library reads them, JSON decoded; None where it refuses the shards itself."""
    try:
        samples = list(wds.WebDataset([str(path) for path in paths], shardshuffle=False, empty_check=False))
    except Exception:
        return None
    return [(sample["__key__"], _values(sample)) for sample in samples]


def _values(sample):
    found = {name: value for name, value in sample.items() if name not in HIDDEN and not _is_missing(value)}
    return {name: _plain(name, value) for name, value in found.items()}


def _is_missing(value):
    """None, and what pandas writes for it."""
    return value is None or (isinstance(value, float) and value != value)


def _plain(name, value):
    """JSON without what is None; of other fields that they are there."""
    if name.rpartition(".")[2] != "json":
        return True
    try:
        value = json.loads(value) if isinstance(value, bytes) else value
        return _pruned(value.tolist() if hasattr(value, "tolist") else value)
    except ValueError:
        return "not JSON"


def _pruned(value):
    if isinstance(value, dict):
        return {name: _pruned(each) for name, each in value.items() if each is not None}
    return value


# faults of these tests, not of what they read
OURS = (NameError, ImportError)


def compare(name, paths, read, refusals=Exception):
    """Fail where a prediction is not what happens.

    Args:
        name: of the profile.
        paths: the shards.
        read: reads them.
        refusals: what it raises where it refuses.
    """
    guess = predicted(name, paths)
    if guess == "refused":
        with pytest.raises(refusals) as caught:
            read(paths)
        assert not isinstance(caught.value, OURS)
        return
    wanted = ours(paths)
    found = [(sample["__key__"], _values(sample)) for sample in read(paths)]
    if wanted is not None:  # else the check itself tells what is wrong with the shards
        assert guess == ("same" if found == wanted else "differs"), (found, wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_hf(shape, tmp_path):
    """Refused, read as we read it, or otherwise: over all shapes, by ``load_dataset`` itself."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    paths = reader_shapes.write(SHAPES[shape], tmp_path)

    def read(paths):
        files = {"train": [str(path) for path in paths]}
        found = datasets.load_dataset("webdataset", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
        for field, feature in list(found.features.items()):
            if hasattr(feature, "decode_example"):
                found = found.cast_column(field, type(feature)(decode=False))
        return list(found)

    compare("hf", paths, read)


@pytest.fixture(scope="module")
def running():
    """A Ray of one process."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False,
        object_store_memory=80_000_000,
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


# lists of one element among objects come out of Ray as the element: a matter of its columns, which is not predicted
UNPREDICTED = {"json kinds"}


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - UNPREDICTED))
def test_ray(running, shape, tmp_path):
    """The same over Ray Data, with its default decoder."""
    paths = reader_shapes.write(SHAPES[shape], tmp_path)

    def read(paths):
        found = running.data.read_webdataset([str(path) for path in paths], override_num_blocks=1).take_all()
        return sorted(({**row} for row in found), key=lambda row: row["__key__"]) if len(paths) > 1 else found

    compare("ray", paths, read)


# a field without a name cannot be asked for, so that its loss cannot be seen
UNSEEN = {"empty extension"}


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - UNSEEN))
def test_dali(shape, tmp_path):
    """The bytes of every field, without an index, on the CPU."""
    pytest.importorskip("nvidia.dali")
    import numpy as np
    from nvidia.dali import fn, pipeline_def

    paths = [str(path) for path in reader_shapes.write(SHAPES[shape], tmp_path)]
    try:
        wanted = [
            {name: value for name, value in sample.items() if name not in HIDDEN}
            for sample in wds.WebDataset(paths, shardshuffle=False, empty_check=False)
        ]
    except Exception:
        wanted = None
    extensions = sorted({name for sample in wanted or () for name in sample}) or ["txt", "cls"]

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def reading():
        outputs = fn.readers.webdataset(
            paths=paths, ext=extensions, missing_component_behavior="empty", case_sensitive_extensions=True,
            name="reader",
        )  # fmt: skip
        return tuple(outputs) if len(extensions) > 1 else outputs

    def read():
        run = reading()
        run.build()
        count = run.reader_meta("reader")["epoch_size"]
        return [[np.array(output.at(0)).tobytes() for output in run.run()] for _ in range(count)]

    guess = predicted("dali", paths)
    if guess == "refused":
        with pytest.raises(Exception, match=""):
            read()
        return
    found = read()
    if wanted is not None:
        rows = [[sample.get(extension, b"") for extension in extensions] for sample in wanted]
        assert guess == ("same" if found == rows else "differs")


@pytest.mark.parametrize("shape", SHAPES)
def test_energon(shape, tmp_path):
    """Prepared by Energon itself, then read from front to back; refused by either."""
    energon = pytest.importorskip("megatron.energon")
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    @dataclasses.dataclass
    class Raw(energon.Sample):
        fields: dict[str, bytes]

    @energon.stateless
    def cook(sample):
        fields = {name: bytes(value) for name, value in sample.items() if not name.startswith("__")}
        return Raw(**energon.basic_sample_keys(sample), fields=fields)

    class Plain(energon.DefaultTaskEncoder):
        decoder = None
        cookers = [energon.Cooker(cook)]

    def read(paths):
        names = [path.name for path in paths]
        WebdatasetPreparator.prepare_dataset(
            tmp_path, names, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
        )
        kind = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
        (tmp_path / ".nv-meta" / "dataset.yaml").write_text(kind)
        dataset = energon.get_val_dataset(
            tmp_path, split_part="train", worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=None, task_encoder=Plain(), max_samples_per_sequence=None,
        )  # fmt: skip
        return [{"__key__": sample.__key__, **sample.fields} for sample in energon.get_loader(dataset)]

    # it ends the process where two samples have one key
    refusals = (AssertionError, tarfile.ReadError, UnicodeEncodeError, SystemExit)
    compare("energon", reader_shapes.write(SHAPES[shape], tmp_path), read, refusals)


@pytest.mark.parametrize("shape", SHAPES)
def test_grain(shape, tmp_path):
    """Every sample, by Grain's own sampler over ``IndexedDataset``."""
    grain = pytest.importorskip("grain")
    paths = reader_shapes.write(SHAPES[shape], tmp_path)

    def read(paths):
        with wds.IndexedDataset([str(path) for path in paths]) as source:
            return list(grain.MapDataset.source(source))

    compare("grain", paths, read)
