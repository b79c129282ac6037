"""``wds state``: what it prints is what ``wds.states`` says, as text and as JSON."""

import json

import pytest

import webdataset as wds
from support.command import json_lines, run_wds
from webdataset.cli import exit_status
from webdataset.cli.schema import find_schemas
from webdataset.cli.state import parse_range
from webdataset.core.errors import UsageError

jsonschema = pytest.importorskip("jsonschema")
TRAIN = """
import webdataset as wds

def make():
    dataset = wds.WebDataset("s-{0..3}.tar", shardshuffle=100, seed=1).shuffle(9).decode().to_tuple("__key__", "cls")
    return dataset.batched(4).elastic(streams=4)

def loader():
    return wds.Loader(make(), None, workers=2)

def failing():
    return 1 / 0

def raising():
    return wds.WebDataset("s-{0..3}.tar", seed=1, shardshuffle=False).map(lambda sample: sample["nothing"])

def dropping():
    dataset = wds.WebDataset("s-{0..3}.tar", seed=1, shardshuffle=False).decode()
    return dataset.map(lambda sample: sample if sample["cls"] % 2 else None)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four shards, a module with datasets, and a checkpoint with a state."""
    folder = tmp_path_factory.mktemp("run")
    for number in range(4):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(12):
                sink.write({"__key__": f"{number}-{index:02d}", "cls": index})
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    (folder / "lacking.py").write_text("import no_such_package_here", encoding="utf-8")
    (folder / "broken.py").write_text("def make(:", encoding="utf-8")
    dataset = wds.WebDataset(str(folder / "s-{0..3}.tar"), shardshuffle=100, seed=1).shuffle(9)
    run = iter(dataset.elastic(streams=4))
    for _ in range(6):
        next(run)
    (folder / "own.json").write_text(json.dumps({"step": 6, "data": run.state_dict()}), encoding="utf-8")
    return folder


def check(values):
    """Fail where a line of output is not what the schema says."""
    validator = jsonschema.Draft202012Validator(find_schemas()["state"])
    for value in values:
        validator.validate(value)


def test_show(folder):
    """A state within a checkpoint: epoch, seed, received, and a line for each stream."""
    text = run_wds("state", "show", "own.json", cwd=folder).stdout.decode()
    assert "received  6 items" in text
    assert "streams   4 of 4 known, 0 ended" in text
    assert len(text.partition("stream  items")[2].splitlines()) == 1 + 4
    values = json_lines(run_wds("state", "show", "--json", "-", cwd=folder, stdin=(folder / "own.json").read_bytes()))
    check(values)
    assert (values[0]["received"], values[0]["shards"], len(values[0]["progress"])) == (6, 4, 4)


def test_trace_of_a_function(folder):
    """The function is found in the working directory; the keys are those of a run."""
    values = json_lines(run_wds("state", "trace", "train:make", "--json", cwd=folder))
    check(values)
    dataset = wds.WebDataset(str(folder / "s-{0..3}.tar"), shardshuffle=100, seed=1).shuffle(9)
    real = [list(keys) for (keys,) in dataset.to_tuple("__key__").batched(4).elastic(streams=4)]
    assert [value["keys"] for value in values] == real
    lines = run_wds("state", "trace", "train:loader", "--batches", "2-3", cwd=folder).stdout.decode().splitlines()
    assert lines == [f"{number}\t{' '.join(real[number])}" for number in (2, 3)]
    last = len(real) - 1
    for batches, printed, told in (
        (f"{last}-{last + 9}", 1, f"the epoch ends with batch {last}"),
        (f"{last + 1}", 0, "there are no such batches"),
        (f"{last}", 1, ""),
    ):
        done = run_wds("state", "trace", "train:loader", "--batches", batches, cwd=folder)
        assert len(done.stdout.splitlines()) == printed
        assert told in done.stderr.decode()
        assert bool(told) == bool(done.stderr)


def test_trace_of_shards_from_a_state(folder):
    """Shards with options are a dataset too; the state's batches follow."""
    own = ["--shard-shuffle", "100", "--shuffle", "9", "--seed", "1", "--streams", "4"]
    shards = str(folder / "s-{0..3}.tar")
    whole = json_lines(run_wds("state", "trace", shards, *own, "--json"))
    rest = json_lines(run_wds("state", "trace", shards, *own, "--state", folder / "own.json", "--json"))
    assert [value["keys"] for value in rest] == [value["keys"] for value in whole[6:]]
    assert {value["shards"][0] for value in whole} == {str(folder / f"s-{number}.tar") for number in range(4)}


def test_ranks_and_workers_give_each_sample_once(folder):
    """Together, all ranks and workers receive every sample once."""
    found = []
    for rank in range(2):
        for worker in range(2):
            place = ["--rank", str(rank), "--ranks", "2", "--workers", "2", "--worker", str(worker)]
            done = run_wds("state", "trace", "train:make", "--order", "torch", *place, "--json", cwd=folder)
            found += [key for value in json_lines(done) for key in value["keys"]]
    assert sorted(found) == [f"{number}-{index:02d}" for number in range(4) for index in range(12)]


def test_functions_that_may_drop_samples_are_named(folder):
    """Samples are decoded only where a function decides what comes, and that is said."""
    done = run_wds("state", "trace", "train:dropping", cwd=folder)
    assert b"samples are decoded" in done.stderr
    assert b"map(" in done.stderr
    assert len(done.stdout.splitlines()) == 24
    assert run_wds("state", "trace", "train:make", cwd=folder).stderr == b""


def test_advance(folder, tmp_path):
    """The new state is that of a run; nothing is replaced without ``--force``."""
    dataset = wds.WebDataset(str(folder / "s-{0..3}.tar"), shardshuffle=100, seed=1).shuffle(9).elastic(streams=4)
    own = ["--shard-shuffle", "100", "--shuffle", "9", "--seed", "1", "--streams", "4", "--batches", "5"]
    command = ["state", "advance", folder / "own.json", folder / "s-{0..3}.tar", *own]
    printed = json_lines(run_wds(*command))
    check(printed)
    assert printed[0]["received"] == 11
    run = dataset.elastic_run(state=printed[0])
    whole = [sample["__key__"] for sample in dataset]
    assert [sample["__key__"] for sample in run] == whole[11:]
    run_wds(*command, "-o", tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text(encoding="utf-8")) == printed[0]
    refused = run_wds(*command, "-o", tmp_path / "new.json", status=exit_status.FAILED)
    assert b"--force" in refused.stderr
    run_wds(*command, "-o", tmp_path / "new.json", "--force")
    assert [path.name for path in tmp_path.iterdir()] == ["new.json"]


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["show", "train.py"], exit_status.FAILED, b"no JSON"),
        (["show", "none.json"], exit_status.FAILED, b"none.json"),
        (["trace", "nowhere:make"], exit_status.WRONG_USE, b"no module 'nowhere'"),
        (["trace", "train:failing"], exit_status.FAILED, b"train:failing failed: ZeroDivisionError"),
        (["trace", "train:raising"], exit_status.FAILED, b"the dataset failed: KeyError"),
        (["trace", "lacking:make"], exit_status.FAILED, b"the module 'lacking' failed: ModuleNotFoundError"),
        (["trace", "broken:make"], exit_status.FAILED, b"the module 'broken' failed: SyntaxError"),
        (["trace", "train:nothing"], exit_status.WRONG_USE, b"no function 'nothing'"),
        (["trace", "train:make", "--shuffle", "3"], exit_status.WRONG_USE, b"leave out the options"),
        (["trace", "train:make", "--batches", "9-3"], exit_status.WRONG_USE, b"ends before it begins"),
        (["trace", "s-0.tar", "--rank", "2"], exit_status.WRONG_USE, b"no rank 2"),
        (["trace", "train:make", "--state", "own.json"], exit_status.FAILED, b"another dataset"),
        (["advance", "own.json", "train:make"], exit_status.WRONG_USE, b"how many batches"),
    ],
)
def test_mistakes(folder, arguments, status, message):
    """Each is one message that says what to do."""
    assert message in run_wds("state", *arguments, cwd=folder, status=status).stderr


def test_ranges():
    """Both ends of a range count."""
    assert [parse_range(text) for text in (None, "7", "7-", "7-9")] == [(0, None), (7, 8), (7, None), (7, 10)]
    for wrong in ("x", "-3", "1-x", "1.5"):
        with pytest.raises(UsageError):
            parse_range(wrong)


@pytest.mark.parametrize("name", ["show", "trace", "advance"])
def test_help_of_each_part_has_examples(name):
    """Also the parts of a command have examples, on lines of their own, and help for every option."""
    text = run_wds("state", name, "--help").stdout.decode()
    assert f"\n    wds state {name}" in text.partition("Examples:")[2]
