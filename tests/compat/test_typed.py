"""Type checkers see the names of the package in ``__init__.pyi``, since it looks them up when they are used."""

import ast
import dataclasses
import importlib.util
import inspect
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.samples.sample_reader import Reading, ReadingOptions

STUB = Path(wds.__file__).with_suffix(".pyi")
SCRIPT = Path(__file__).parents[2] / "scripts" / "package_stub.py"
CONSUMER = '''"""Write, read, train, go on, mix, count and look up."""
import json
from pathlib import Path
from typing import Any

import webdataset as wds


def write(folder: Path) -> list[str]:
    with wds.ShardWriter(str(folder / "s-%04d.tar"), maxcount=10, encoder=True) as sink:
        for number in range(30):
            sink.write({"__key__": f"{number:04d}", "cls": number, "txt": "a"})
    with wds.TarWriter(str(folder / "one.tar")) as tar:
        tar.write({"__key__": "a", "cls": 1})
    return [str(path) for path in sorted(folder.glob("s-*.tar"))]


def label(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def heard(error: Exception) -> bool:
    print(error)
    return True


def train(urls: list[str], folder: Path) -> None:
    dataset = wds.WebDataset(urls, shardshuffle=100, seed=1, handler=heard).shuffle(100).decode().map(label).batched(4)
    for batch in dataset:
        print(batch)
    sized = wds.WebDataset(urls, shardshuffle=False).with_length(7)
    print(len(sized))
    elastic = wds.WebDataset(urls, shardshuffle=100, seed=1).decode("rgb8").to_tuple("cls", "txt").elastic(8)
    run = iter(elastic)
    next(run)
    state = json.dumps(elastic.state_dict())
    elastic.load_state_dict(json.loads(state))
    with wds.Loader(elastic, 8, workers=2) as loader:
        for batch in loader:
            print(batch, loader.state_dict())
    batches = wds.WebLoader(elastic, batch_size=None, num_workers=2).unbatched().shuffle(10).batched(8)
    for batch in batches:
        print(batch)
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(urls), wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples(),
        wds.shuffle(10, initial=5), wds.decode(), wds.to_tuple("cls"), wds.batched(4),
    )
    print(list(pipeline))
    mix = wds.RandomMix([elastic, pipeline], [2, 1], longest=True)
    print(next(iter(mix)))
    indexed = wds.IndexedDataset(urls)
    print(len(indexed), indexed[0]["cls"])
    print(wds.sample_counts(urls))
    try:
        with wds.gopen(urls[0]) as stream:
            stream.read(10)
    except wds.WebDatasetError as error:
        print(error.url, error.key)
'''


def passed_on():
    """Return public name to (module, name there), as the stub says."""
    found = {}
    for statement in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and statement.level:
            for alias in statement.names:
                found[alias.asname] = (statement.module, alias.name)
    return found


def test_stub_names_what_the_package_serves():
    """Each name that the stub passes on is the very thing that the package gives."""
    for public, (home, name) in passed_on().items():
        if public in vars(wds)["_ASKED"] and not importlib.util.find_spec("torchdata"):
            continue
        here = getattr(wds, public)
        if home is None:
            assert isinstance(here, types.ModuleType)
            assert here is importlib.import_module(f"webdataset.{name}")
        else:
            assert here is getattr(importlib.import_module(f"webdataset.{home}"), name), public


def test_stub_leaves_out_nothing():
    """Every public name and module is typed."""
    typed = {*passed_on(), "gopen"}
    assert set(wds.__all__) - {"pytorch_weights_only"} <= typed
    assert set(vars(wds)["_MODULES"]) <= typed
    assert "pytorch_weights_only: bool" in STUB.read_text(encoding="utf-8")


def test_stub_is_as_written():
    """The file is what the script writes."""
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A folder for programs and mypy's cache: the first check takes ten seconds, those after it one."""
    return tmp_path_factory.mktemp("mypy")


def mypy(checked, text):
    """Return what mypy says of a program that uses the package."""
    program = checked / "program.py"
    program.write_text(text, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        str(checked),
        str(program),
    ]
    done = subprocess.run(command, cwd=checked, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_every_public_name_has_a_type(checked):
    """No name is Any or unknown to mypy, lazily served or not."""
    pytest.importorskip("mypy")
    names = [*wds.__all__, "WebDatasetError"]
    lines = mypy(checked, "import webdataset as wds\n" + "".join(f"reveal_type(wds.{name})\n" for name in names))
    assert len(lines) == len(names), lines
    assert [line for line in lines if 'Revealed type is "Any"' in line or "error" in line.partition(" note:")[0]] == []


def test_misspelt_and_mistyped_arguments_are_type_errors(checked):
    """Of a dataset: also those that it passes on to the rules of reading."""
    pytest.importorskip("mypy")
    calls = ["shardshufle=1", "missing_end='never'", "duplicates=3", "split_samples='warn'", "prefetch=0, lcase=False"]
    text = "import webdataset as wds\n" + "".join(f"wds.WebDataset('x.tar', {call})\n" for call in calls)
    assert [line.partition(": ")[0].rpartition(":")[2] for line in mypy(checked, text) if "error:" in line] == [
        "2",
        "3",
        "4",
    ]


def test_reading_options_are_those_of_reading():
    """What a dataset passes on is what the rules of reading take, but for what it has arguments of its own for."""
    known = {field.name for field in dataclasses.fields(Reading)}
    own = {*inspect.signature(wds.WebDataset.__init__).parameters}
    assert {*ReadingOptions.__annotations__} == known - own - {"cache"}


def test_dir_shows_public_names_alone():
    """And the special names that every module has."""
    shown = [name for name in dir(wds) if not name.startswith("__")]
    assert {*shown} == {*wds.__all__, *vars(wds)["_MODULES"], *vars(wds)["_ASKED"]}


def pyright(tmp_path, text):
    """Return what pyright, all of its rules on, says of a program: line number, severity and message of each."""
    pytest.importorskip("basedpyright")
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1, done.stdout + done.stderr
    return [(each["range"]["start"]["line"], each["severity"], each["message"]) for each in found["generalDiagnostics"]]


@pytest.mark.slow
def test_every_public_name_has_a_type_for_pyright(tmp_path):
    """No name is Any, unknown, or unknown in a part of its type."""
    # types of torch are unknown where it is not installed
    of_torch = set() if importlib.util.find_spec("torch") else {"check_ranks", "equal_steps"}
    names = [name for name in (*wds.__all__, "WebDatasetError") if name not in of_torch]
    report = pyright(tmp_path, "import webdataset as wds\n" + "".join(f"reveal_type(wds.{name})\n" for name in names))
    shown = [message for _, severity, message in report if severity == "information"]
    assert len(shown) == len(names)
    assert [message for message in shown if "Unknown" in message or message.endswith('is "Any"')] == []
    assert [message for _, severity, message in report if severity != "information"] == []


@pytest.mark.slow
def test_a_program_that_uses_the_package_has_no_type_errors(tmp_path, checked):
    """Neither for pyright nor for mypy; mistakes in it are found, in their lines alone."""
    mistakes = [
        "wds.WebDataset('x.tar', shardshufle=1)",
        "wds.WebDataset('x.tar').shufle(100)",
        "wds.nonsense",
        "wds.Loader([1], workers='2')",
        "wds.TarWriter('x.tar').write(3)",
    ]
    assert pyright(tmp_path, CONSUMER) == []
    assert mypy(checked, CONSUMER) == []
    text = CONSUMER + "".join(f"_ = {mistake}\n" for mistake in mistakes)
    first = CONSUMER.count("\n")
    wrong = {line for line, severity, _ in pyright(tmp_path, text) if severity == "error"}
    assert sorted(wrong) == [first + number for number in range(len(mistakes))]
