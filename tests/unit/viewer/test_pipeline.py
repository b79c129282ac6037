"""The user's function: what it may be, what it may do to its process, and what comes back of it."""

import textwrap
from collections.abc import Iterator

import pytest

from webdataset.core.errors import NoSuchSample
from webdataset.viewer import pipeline
from webdataset.viewer.pipeline import PipelineRunner, ValueDescriber, takes_iterator

MODULE = """
import os, random, sys, time
from collections.abc import Iterable
import webdataset as wds

def as_is(sample):
    return sample

def hang(sample):
    while sample["txt"] == b"hang":
        time.sleep(0.01)
    return {"txt": "fine"}

def end(sample):
    if sample["txt"] == b"end":
        os._exit(7)
    return {"txt": "fine"}

def leave(sample):
    sys.exit(3)

def give(source):
    for sample in source:
        yield {"first": sample["txt"]}
        yield {"second": 2}

def take(source: Iterable[dict]):
    return ({"n": len(sample)} for sample in source)

stage = wds.map(lambda sample: {"staged": sample["txt"]})

def many(sample):
    return [{"a": 1}, None, ("x", 2.0)]

def forever(source):
    while True:
        yield {"x": 1}

def encoded(sample):
    import io
    from PIL import Image
    out = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 0, 0)).save(out, "JPEG")
    return {"jpg": out.getvalue(), "noise": b"\\xff\\0\\x80" * 9, "empty": b""}

def chat(sample):
    print("hello on standard output")
    return 1

def odd(sample):
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no")
    deep = []
    for _ in range(5000):
        deep = [deep]
    return {"deep": deep, "inf": float("inf"), "nan": [float("nan")], "big": 10**400, "hostile": Hostile(),
            "long": "x" * 10**6, "half": "\\ud800", "bytes": bytes(10**6), "keys": {1: {2, 3}}, "none": None}

def secret(sample):
    raise ValueError("could not read https://u:pass123@host/x?X-Amz-Signature=abcdef0123456789")
"""
SAMPLE = {"__key__": "k", "__url__": "u", "txt": b"text"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a function of the module; the processes end with the test."""
    (tmp_path / "mine_of_user.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    runners = {}

    def call(name, txt=b"text", seed=0, **options):
        if name not in runners:
            runners[name] = PipelineRunner(f"mine_of_user:{name}", **options)
        return runners[name].call({**SAMPLE, "txt": txt}, seed)

    yield call
    for runner in runners.values():
        runner.close()


def fields_of(answer):
    """Return what the fields of each item hold."""
    assert answer["error"] is None, answer["error"]
    return [
        {each["name"]: each.get("value", each.get("text", each.get("json"))) for each in item["fields"]}
        for item in answer["after"]
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("as_is", [{"__key__": "k", "__url__": "u", "txt": "text"}]),
        ("give", [{"first": "text"}, {"second": 2}]),
        ("take", [{"n": 3}]),
        ("stage", [{"staged": "text", "__key__": "k"}]),
        ("many", [{"a": 1}, {"0": "x", "1": 2.0}]),
        ("forever", [{"x": 1}] * pipeline.MOST_SAMPLES),
        ("chat", [{"value": 1}]),
    ],
)
def test_kinds_of_functions(run, capfd, name, wanted):
    """From sample to sample, to several, to none; from iterator to iterator; without an end. Prints go to stderr."""
    assert fields_of(run(name)) == wanted
    assert capfd.readouterr().out == ""


def test_a_function_that_hangs(run):
    """It is cut off with a message, and the next sample is run by a new process."""
    assert fields_of(run("hang", timeout_seconds=3)) == [{"txt": "fine"}]
    error = run("hang", b"hang")["error"]
    assert error["type"] == "Timeout"
    assert "more than 3 s" in error["message"]
    assert fields_of(run("hang")) == [{"txt": "fine"}]


def test_a_function_that_ends_the_process(run):
    """The status is told, and the server goes on."""
    error = run("end", b"end")["error"]
    assert "status 7" in error["message"]
    assert fields_of(run("end")) == [{"txt": "fine"}]
    assert run("leave")["error"]["type"] == "SystemExit"


@pytest.mark.parametrize(
    ("name", "message"), [("no_such", "has no function"), ("MODULE_MISSING", "there is no module"), ("BROKEN", "oops")]
)
def test_functions_that_cannot_be_imported(tmp_path, monkeypatch, name, message):
    """A missing module or function, and a module that fails: each answer says so."""
    (tmp_path / "another_of_user.py").write_text("")
    (tmp_path / "broken_of_user.py").write_text("raise ValueError('oops')")
    monkeypatch.chdir(tmp_path)
    module = {"MODULE_MISSING": "missing_of_user", "BROKEN": "broken_of_user"}.get(name, "another_of_user")
    runner = PipelineRunner(f"{module}:{name}")
    try:
        for _ in range(2):
            assert message in runner.call(SAMPLE, 0)["error"]["message"]
    finally:
        runner.close()


def test_odd_values(run):
    """Whatever a function gives is shown in bounds, and as JSON that a browser reads."""
    answer = run("odd")
    fields = {each["name"]: each for each in answer["after"][0]["fields"]}
    assert fields["inf"]["value"] == "inf"
    assert fields["nan"]["json"] == ["nan"]
    assert "cannot be shown" in fields["hostile"]["text"] or fields["hostile"]["kind"] == "binary"
    assert fields["long"]["truncated"]
    assert len(fields["long"]["text"]) <= 10_000
    assert fields["keys"]["json"] == {"1": [2, 3]}
    assert fields["none"]["value"] is None
    assert len(str(answer)) < 100_000


def test_encoded_pictures(run):
    """Bytes of an image have its picture; other bytes that are no text are no text either."""
    fields = {each["name"]: each for each in run("encoded")["after"][0]["fields"]}
    assert fields["jpg"]["kind"] == "image"
    assert fields["jpg"]["preview"]
    assert (fields["noise"]["kind"], fields["noise"]["text"][:8]) == ("binary", "ff 00 80")
    assert (fields["empty"]["kind"], fields["empty"]["text"]) == ("text", "")


def test_secrets(run):
    """A message of the function's with a credential loses it."""
    message = str(run("secret")["error"])
    assert "pass123" not in message
    assert "abcdef0123456789" not in message


def test_pictures_are_bounded(monkeypatch):
    """Pictures have names that cannot be guessed, and the oldest make place."""
    monkeypatch.setattr(pipeline, "STORE_BYTES", 100)
    runner = PipelineRunner("x:y")
    names = [runner._keep(bytes([number]) * 40) for number in range(4)]
    assert runner.image(names[3]) == b"\3" * 40
    for name in (names[0], "", "../x"):
        with pytest.raises(NoSuchSample):
            runner.image(name)


@pytest.mark.parametrize(
    ("shape", "dtype", "pictured"),
    [
        ((20, 30), "uint8", True), ((20, 30, 3), "uint8", True), ((3, 20, 30), "float32", True),
        ((1, 9, 9), "bool", True),
        ((4, 20, 30), "float16", True), ((2, 20, 30), "uint8", False), ((20,), "uint8", False),
        ((0, 5), "float32", False),
        ((2, 3, 4, 5), "float32", False), ((5, 5), "complex64", False), ((8, 8), "int64", False),
        ((), "float64", False),
    ],
)  # fmt: skip
def test_arrays(shape, dtype, pictured):
    """Arrays have shape, type and statistics; those that look like pictures have one."""
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("PIL.Image")
    array = numpy.zeros(shape, dtype)
    describer = ValueDescriber()
    found = describer.describe_value(array)
    assert (found["array"]["shape"], found["array"]["dtype"]) == (list(shape), dtype)
    assert (found["preview"] is not None) is pictured
    assert len(describer.images) == pictured


def test_large_pictures_are_refused():
    """A file that says it is huge is not decoded."""
    bomb = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (50_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0" + bytes(100)
    assert ValueDescriber().describe_value(bomb).get("preview") is None


def test_tensors():
    """Tensors are arrays; bfloat16 and those that need gradients too."""
    torch = pytest.importorskip("torch")
    describer = ValueDescriber()
    for value in (torch.ones(3, 8, 8, dtype=torch.bfloat16), torch.ones(3, 8, 8, requires_grad=True)):
        found = describer.describe_value(value)
        assert found["kind"] == "array"
        assert found["array"]["maximum"] == 1.0
        assert found["preview"] is not None


def test_annotations():
    """What a function takes is told by what it is, and by its first annotation."""

    def plain(sample):
        return sample

    def annotated(source: Iterator[dict[str, object]]):
        return source

    assert not takes_iterator(plain)
    assert takes_iterator(annotated)
    assert not takes_iterator(dict)
    assert not takes_iterator(len)
