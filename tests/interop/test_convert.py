"""``wds convert`` beside Hugging Face's datasets, and TFRecord files of another writer."""

import io
import json

import pytest

from support.command import run_wds
from webdataset import TarWriter

datasets = pytest.importorskip("datasets")

SAMPLES = 5


@pytest.fixture
def here(tmp_path):
    """A folder with a shard of pictures, texts, numbers, structures and arrays."""
    np, image = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    datasets.disable_progress_bars()
    with TarWriter(str(tmp_path / "x.tar")) as sink:
        for number in range(SAMPLES):
            file = io.BytesIO()
            image.new("RGB", (3 + number, 2), (number, 2, 3)).save(file, "PNG")
            sink.write(
                {
                    "__key__": f"k{number}",
                    "image.png": file.getvalue(),
                    "caption.txt": f"text {number}",
                    "label.cls": number,
                    "meta.json": {"a": [number], "b": {"c": "x"}},
                    "e.npy": np.full((2, 3), number, "float32"),
                }
            )
    return tmp_path


def check(dataset):
    """The rows of a dataset are the samples."""
    assert len(dataset) == SAMPLES
    for number, row in enumerate(dataset):
        image = row.pop("image")
        assert (image.size, image.getpixel((0, 0))) == ((3 + number, 2), (number, 2, 3))
        assert row == {
            "__key__": f"k{number}", "caption": f"text {number}", "label": number,
            "meta": {"a": [number], "b": {"c": "x"}}, "e": [[number] * 3] * 2,
        }  # fmt: skip


def test_parquet_shows_pictures(here):
    """``load_dataset("parquet")`` gives decoded pictures without being told."""
    run_wds("convert", "x.tar", "-o", "x.parquet", cwd=here)
    check(
        datasets.load_dataset("parquet", data_files=str(here / "x.parquet"), split="train", cache_dir=str(here / "c"))
    )


def test_folders_of_save_to_disk(here):
    """``load_from_disk`` reads our folder, and we read what ``save_to_disk`` makes of it."""
    run_wds("convert", "x.tar", "-o", "ours", "--to", "hf", "-c", "2", cwd=here)
    dataset = datasets.load_from_disk(str(here / "ours"))
    check(dataset)
    dataset.save_to_disk(str(here / "theirs"), num_shards=2)
    run_wds("convert", "theirs", "-o", "back.tar", cwd=here)
    texts = run_wds("cat", "-f", "caption.txt", "back.tar", cwd=here).stdout
    assert texts == b"".join(b"text %d" % number for number in range(SAMPLES))
    assert (
        run_wds("cat", "-f", "image.png", "back.tar", cwd=here).stdout
        == run_wds("cat", "-f", "image.png", "x.tar", cwd=here).stdout
    )


def test_features_of_theirs(here):
    """Class labels, arrays, dates and files of a dataset with a split become fields; names of classes are asked for."""
    import datetime as dt

    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "grid": datasets.Array2D((2, 2), "int32"),
            "day": datasets.Value("date32"),
            "words": datasets.List(datasets.Value("string")),
        }
    )
    rows = {
        "label": [1, 0], "grid": [[[1, 2], [3, 4]]] * 2, "day": [dt.date(2026, 11, 23)] * 2, "words": [["a"], []],
    }  # fmt: skip
    made = datasets.DatasetDict({"test": datasets.Dataset.from_dict(rows, features)})
    made.save_to_disk(str(here / "d"))
    run_wds("convert", "d", "-o", "d.tar", "--split", "test", "--class-names", cwd=here)
    listed = run_wds(
        "cat", "--key", "000000000", "-f", "label.txt", "-f", "day.txt", "-f", "words.json", "d.tar", cwd=here
    )
    assert listed.stdout == b'dog2026-11-23["a"]'
    run_wds("convert", "d", "-o", "n.tar", cwd=here)
    assert run_wds("cat", "-f", "label.cls", "n.tar", cwd=here).stdout == b"10"
    from webdataset.codecs.numpy_arrays import npy_loads

    grid = npy_loads(run_wds("cat", "--key", "000000001", "-f", "grid.npy", "n.tar", cwd=here).stdout)
    assert (grid.dtype, grid.tolist()) == ("int32", [[1, 2], [3, 4]])


def test_load_dataset(here):
    """What ``load_dataset`` takes is streamed: here, a folder of JSON lines."""
    (here / "lines").mkdir()
    (here / "lines" / "train.jsonl").write_text("".join(json.dumps({"a": n, "b": ["x"]}) + "\n" for n in range(3)))
    run_wds("convert", "lines", "--from", "hf", "--split", "train", "-o", "l.tar", cwd=here)
    assert run_wds("cat", "-f", "a.cls", "-f", "b.json", "l.tar", cwd=here).stdout == b'0["x"]1["x"]2["x"]'
    assert b"--split" in run_wds("convert", "lines", "--from", "hf", "-o", "m.tar", status=2, cwd=here).stderr


def test_load_dataset_of_other_builders(here):
    """Tables whose features are not known before they are read, and shards, whose samples differ in their order."""
    for name in ("table", "lines", "shards"):
        (here / name).mkdir()
    (here / "table" / "train.csv").write_text('a,b\n1,x\n2,"y,z"\n')
    (here / "lines" / "train.txt").write_text("one\ntwo\n")
    with TarWriter(str(here / "shards" / "train-0.tar")) as sink:
        for number in range(3):
            sink.write({"__key__": f"k{number}", "cls": number, "json": {"x": 1}})
    wanted = {"table": (["-f", "a.cls", "-f", "b.txt"], b"1x2y,z"), "lines": (["-f", "text"], b"onetwo")}
    wanted["shards"] = (["-f", "cls", "-f", "json"], b'0{"x":1}1{"x":1}2{"x":1}')
    for name, (fields, content) in wanted.items():
        run_wds("convert", name, "--from", "hf", "--split", "train", "-o", f"{name}.tar", cwd=here)
        assert run_wds("cat", *fields, f"{name}.tar", cwd=here).stdout == content


def test_load_dataset_counts_rows_through_all_tables(here):
    """A message names the row of the dataset, not that of the piece that was streamed."""
    (here / "lines").mkdir()
    rows = [{"__key__": "a.b" if n == 150 else str(n), "a": n} for n in range(200)]
    (here / "lines" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = run_wds("convert", "lines", "--from", "hf", "--split", "train", "-o", "l.tar", status=3, cwd=here).stderr
    assert b"row 150" in told


def test_tfrecords_of_another_writer(here):
    """Files of the package ``tfrecord`` are read value by value."""
    tfrecord = pytest.importorskip("tfrecord")
    writer = tfrecord.TFRecordWriter(str(here / "x.tfrecord"))
    for number in range(3):
        writer.write(
            {"label": (number, "int"), "score": (0.5, "float"), "word": (b"t", "byte"), "box": ([1, 2], "int")}
        )
    writer.close()
    run_wds("convert", "x.tfrecord", "-o", "t.tar", cwd=here)
    names = ["-f", "label.cls", "-f", "score.json", "-f", "word.txt", "-f", "box.json"]
    found = run_wds("cat", "--key", "000000002", *names, "t.tar", cwd=here).stdout
    assert sorted(found) == sorted(b"20.5t[1,2]")
