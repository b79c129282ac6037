"""``wds convert`` as a program: kinds by name, options, what is told, and round trips."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.command import SRC, json_lines, run_wds
from webdataset import TarWriter
from webdataset.cli.schema import find_schemas
from webdataset.core.errors import UsageError
from webdataset.reshaping.conversion import choose_kind, choose_source_kind

jsonschema = pytest.importorskip("jsonschema")

FIELDS = {
    "image.jpg": b"\xff\xd8\xff x",
    "caption.txt": b"hello",
    "label.cls": b"3",
    "meta.json": b'{"a":1}',
    "odd.foo": b"\0",
}


@pytest.fixture
def here(tmp_path):
    """A folder with a shard and a table."""
    with TarWriter(str(tmp_path / "x.tar")) as sink:
        for number in range(3):
            sink.write({"__key__": f"p/k{number}", **FIELDS})
    pq.write_table(pa.table({"a": [1, None, 3], "__url__": ["u"] * 3}), tmp_path / "holes.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.parquet", "parquet"), ("s3://b/x.PQ?v=1", "parquet"), ("x.feather", "arrow"), ("x-%05d.arrow", "arrow"),
        ("x.tar.zst", "shards"), ("x.tgz", "shards"), ("-", "shards"), ("x.tfrecord.gz", "tfrecord"),
        ("x.tfrecord-00000-of-00002", "tfrecord"), ("t-{0..3}.tfrec", "tfrecord"), ("http://h/d/index.json", "mds"),
        ("x.jsonl", "table"), ("x", None), ("x.json", None),
    ],
)  # fmt: skip
def test_kinds_by_name(name, kind):
    """Names and extensions tell what things are."""
    assert choose_kind(name) == kind


def test_kinds_of_folders(tmp_path):
    """What lies in a folder tells what it is; several kinds at once do not."""
    for name, kind in {"index.json": "mds", "state.json": "hf", "a.parquet": "parquet", "a.jpg": "folder"}.items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / name).touch()
        assert choose_source_kind(str(tmp_path / kind)) == kind
    (tmp_path / "parquet" / "a.tar").touch()
    with pytest.raises(UsageError, match="parquet and shards: say --from"):
        choose_source_kind(str(tmp_path / "parquet"))


@pytest.mark.parametrize("target", ["o.parquet", "o.arrow", "o --to hf", "o --to folder"])
def test_round_trips(here, target):
    """Shards to each format and back are the same samples; the output agrees with the published schema."""
    target, *to = target.split(" ", 1)
    lines = json_lines(run_wds("convert", "x.tar", "-o", target, *(to[0].split() if to else ()), "--json", cwd=here))
    lines += json_lines(run_wds("convert", target, "-o", "back.tar", "--json", cwd=here))
    assert lines == [{"output": target, "samples": 3}, {"shard": "back.tar", "samples": 3}]
    for line in lines:
        jsonschema.validate(line, find_schemas()["convert"])
    assert run_wds("diff", "x.tar", "back.tar", cwd=here).stdout == b""
    assert (
        b"--force"
        in run_wds("convert", "x.tar", "-o", target, *(to[0].split() if to else ()), status=3, cwd=here).stderr
    )


def test_numbered_shards_and_wildcards(here):
    """Several files are one stream of samples, numbered through, in numbered shards."""
    for number in range(3):
        pq.write_table(pa.table({"a": [number]}), here / f"t-{number}.parquet")
    done = run_wds("convert", "t-{0..1}.parquet", "t-[2].parquet", "-o", "n-%d.tar", "-c", "2", "--json", cwd=here)
    assert json_lines(done) == [{"shard": "n-0.tar", "samples": 2}, {"shard": "n-1.tar", "samples": 1}]
    assert run_wds("ls", "n-0.tar", "n-1.tar", cwd=here).stdout.split() == [
        b"000000000", b"a.cls", b"000000001", b"a.cls", b"000000002", b"a.cls",
    ]  # fmt: skip


def test_rows_that_fail(here):
    """The first stops everything; --on-error skip tells them, and the status says so. A warning names __url__."""
    done = run_wds("convert", "holes.parquet", "-o", "h.tar", status=3, cwd=here)
    assert b"row 1: it has no value" in done.stderr
    assert not (here / "h.tar").exists()
    done = run_wds("convert", "holes.parquet", "-o", "h.tar", "--on-error", "skip", status=4, cwd=here)
    assert b"left out: row 1" in done.stderr
    assert b"__url__" in done.stderr
    assert run_wds("cat", "-f", "a.cls", "h.tar", cwd=here).stdout == b"13"


def test_dry_run_writes_nothing(here):
    """Every target says what it would write."""
    before = sorted(here.rglob("*"))
    for target in (["o.parquet"], ["o", "--to", "hf"], ["o", "--to", "folder"]):
        done = run_wds("convert", "x.tar", "-n", "-o", *target, cwd=here)
        assert b"would write o" in done.stderr
        assert b"(3 samples)" in done.stderr
    run_wds("convert", "holes.parquet", "-n", "-o", "o.tar", "--on-error", "skip", status=4, cwd=here)
    assert sorted(here.rglob("*")) == before


def test_fields_can_be_chosen_and_renamed(here):
    """--columns and --rename are about fields, where shards are read."""
    run_wds("convert", "x.tar", "-o", "o.parquet", "--columns", "*.txt", "--rename", "t.txt=caption.txt", cwd=here)
    assert pq.read_table(here / "o.parquet").to_pylist()[0] == {"__key__": "p/k0", "t": "hello"}


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("x.tar -o y.tar", "wds reshard"),
        ("holes.parquet -o y.arrow", "by way of shards"),
        ("holes.parquet", "name what to write"),
        ("x.tar -o y", "--to"),
        ("y.csv -o y.tar", "wds create"),
        ("d/shard.00000.mds -o y.tar", "index.json"),
        ("y.xyz -o y.tar", "--from"),
        ("x.tar -o y.parquet --key a", "--key has no meaning"),
        ("x.tar -o y --to folder -c 3", "--max-count has no meaning"),
        ("holes.parquet -o y.tar --raw", "--raw has no meaning"),
        ("holes.parquet -o y.tar --classes cls", "--classes has no meaning"),
        ("holes.parquet -o y.tar --rename a", "NEW=OLD"),
        ("holes.parquet -o y.tar --rename b=z", "'z', which is not there: a"),
        ("holes.parquet -o y.tar --columns z", "--columns names no column of the table: a"),
        ("x.tar -o - --to parquet", "standard output"),
        ("x.tar -o y.parquet -c 2", "%05d"),
        ("holes.parquet files -o y.tar --columns a", "in separate commands"),
    ],
)
def test_wrong_use(here, arguments, message):
    """What makes no sense is refused with what to write instead, and nothing is written."""
    (here / "files").mkdir()
    (here / "files" / "one.txt").write_bytes(b"1")
    done = run_wds("convert", *arguments.split(), status=2, cwd=here)
    assert message in done.stderr.decode()
    assert len(done.stderr.splitlines()) <= 5
    assert not list(here.glob("y*"))


def test_missing_package(here):
    """Without pyarrow, the error names the extra."""
    (here / "pyarrow.py").write_text("raise ImportError")
    done = run_wds("convert", "x.tar", "-o", "y.parquet", status=3, cwd=here, PYTHONPATH=f"{here}:" + str(SRC))
    assert b"[parquet]" in done.stderr
