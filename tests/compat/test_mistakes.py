"""What users get wrong, and the message that each mistake gets: short, typed, and with what to do next."""

import gzip
import io
import os
import subprocess
import sys
import threading
import traceback
import warnings
import zipfile

import pytest

import webdataset as wds
from webdataset.core.errors import UsageError
from webdataset.samples.sample_reader import Reading
from wids import ShardListDataset

LOCK = threading.Lock()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a shard, and with files that are none."""
    path = tmp_path_factory.mktemp("mistakes")
    with wds.TarWriter(str(path / "s-0000.tar")) as sink:
        for number in range(5):
            sink.write({"__key__": f"{number:03d}", "txt": "text", "cls": number, "jpg": b"\xff\xd8bad"})
    (path / "html.tar").write_text("<!DOCTYPE html><html>Sign in</html>".ljust(600))
    (path / "xml.tar").write_text("<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>".ljust(600))
    with zipfile.ZipFile(path / "zip.tar", "w") as archive:
        archive.writestr("a.txt", "x" * 1000)
    (path / "parquet.tar").write_bytes(b"PAR1" + bytes(1000))
    (path / "json.tar.gz").write_bytes(gzip.compress(b'{"a": 1}' * 1000))
    (path / "lfs.tar").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n".ljust(600))
    return path


def read(folder, name="s-0000.tar", **options):
    """Return a dataset of a file."""
    return wds.WebDataset(str(folder / name), shardshuffle=False, **options)


def spawn_loader(dataset):
    """Return what a loader of spawned processes gives."""
    with wds.Loader(dataset, 2, workers=1, mode="processes", start_method="spawn") as loader:
        return list(loader)


def keep_nothing(samples):
    """A stage that lacks its ``yield`` or ``return``."""
    for _ in samples:
        pass


def open_with(opener):
    """Read a url whose scheme is of this opener."""
    wds.gopen_schemes["nothing"] = opener
    try:
        return list(wds.WebDataset("nothing://x", shardshuffle=False))
    finally:
        del wds.gopen_schemes["nothing"]


def make_file(path, text):
    """Write a file, and return its name."""
    path.write_text(text)
    return str(path)


MISTAKES = {
    "an HTML page": (lambda f: list(read(f, "html.tar")), "its content is an HTML page: the server sent it"),
    "an XML answer": (lambda f: list(read(f, "xml.tar")), "its content is XML, perhaps a server's error message"),
    "a zip archive": (lambda f: list(read(f, "zip.tar")), "its content is a zip archive; write the files into a tar"),
    "a Parquet file": (lambda f: list(read(f, "parquet.tar")), "its content is a Parquet file; 'wds convert' makes"),
    "gzip of JSON": (lambda f: list(read(f, "json.tar.gz")), "its content is JSON"),
    "a Git LFS pointer": (
        lambda f: list(read(f, "lfs.tar")),
        "its content is a Git LFS pointer; fetch the file itself",
    ),
    "no such file": (lambda f: list(read(f, "none.tar")), "cannot open: No such file or directory [(]url=.*none.tar"),
    "a wildcard without a match": (lambda f: list(read(f, "n*.tar")), "no file matches this wildcard"),
    "a range with a dash": (lambda f: list(read(f, "s-{0000-0002}.tar")), r"did you mean '.*s-\{0000..0002\}.tar'\?"),
    "a range with three dots": (lambda f: list(read(f, "s-{00...02}.tar")), r"did you mean '.*s-\{00..02\}.tar'\?"),
    "a folder": (lambda f: list(read(f, ".")), r"cannot open: Is a directory; name the files in it: .*/\*\.tar"),
    "filter of other libraries": (lambda f: read(f).filter(bool), r"no attribute 'filter'; write \.select\(function\)"),
    "cache of other libraries": (lambda f: read(f).cache(), r"no attribute 'cache'; write \.mcached\(\) to keep"),
    "shard of other libraries": (lambda f: read(f).shard(2, 0), "no attribute 'shard'; write WebDataset.*split_by"),
    "a name with two letters turned": (lambda f: wds.shuffel, "no attribute 'shuffel'; did you mean 'shuffle'"),
    "a name in other capitals": (lambda f: wds.Webdataset, "no attribute 'Webdataset'; did you mean 'WebDataset'"),
    "a range with one dot": (lambda f: list(read(f, "s-{00.02}.tar")), r"did you mean '.*s-\{00..02\}.tar'\?"),
    "a call in the place of a function": (lambda f: read(f).map(print()), r"pass the function f itself: f, not f\(\)"),
    "a field in the place of a predicate": (lambda f: read(f).select("jpg"), "select.lambda sample: 'jpg' in sample"),
    "take of other libraries": (lambda f: read(f).take(3), r"no attribute 'take'; write \.slice\(n\)"),
    "num_workers= of a loader": (
        lambda f: wds.Loader(read(f), 2, num_workers=2),  # type: ignore[arg-type]
        r"^Loader\(\) got an unexpected keyword argument 'num_workers'; write workers=",
    ),
    "shuffle= of a loader": (
        lambda f: wds.Loader(read(f), 2, shuffle=True),  # type: ignore[arg-type]
        r"'shuffle'; the dataset shuffles: WebDataset\(urls, shardshuffle=100\)",
    ),
    "a misspelt argument of a loader": (
        lambda f: wds.Loader(read(f), 2, droplast=True),  # type: ignore[arg-type]
        r"'droplast'; did you mean 'drop_last'\?",
    ),
    "samples in the place of a stage": (
        lambda f: list(wds.DataPipeline([{"url": str(f / "s-0000.tar")}], wds.tarfile_to_samples())),
        r"a dictionary is not a pipeline stage: \{'url': .*\}\. A list in the place of a stage is a list of stages",
    ),
    "a state of a loader over a list": (
        lambda f: wds.Loader([1, 2], 2).state_dict(),
        r"this one is over list: read the shards as a stream, wds.WebDataset\(urls\).elastic\(\)",
    ),
    "workers= of WebLoader": (lambda f: wds.WebLoader(read(f), workers=2), "write num_workers= in place of workers="),
    "a handler that is a name": (
        lambda f: read(f, handler="ignore"),
        r"handler='ignore': a function of the exception, such as wds.warn_and_continue",
    ),
    "a list of urls as the commands take it": (
        lambda f: list(wds.WebDataset("@list.txt")),
        r"only commands take @list: pass a list of urls",
    ),
    "a decoder of True": (
        lambda f: wds.Decoder(True),
        "a decoder takes image specs, formats and functions f.key, bytes., not True",
    ),
    "sound by its name": (
        lambda f: list(read(f).decode("torch_audio")),
        r"decoded by functions, not by names: write decode\(wds.torch_audio\)",
    ),
    "options of fsspec's client": (
        lambda f: wds.WebDataset("s3://b/x.tar", storage_options={"client_kwargs": {"endpoint_url": "http://h"}}),
        "has no 'client_kwargs': write endpoint_url= and region= without it",
    ),
    "a path in the place of an image": (
        lambda f: wds.TarWriter(str(f / "o.tar")).write({"__key__": "a", "jpg": f / "a.jpg"}),
        r"Path is no image: pass a Pillow image, an array, a tensor, or the bytes of a file",
    ),
    "a field without a format": (
        lambda f: wds.TarWriter(str(f / "o.tar")).write({"__key__": "a", "label": 3}),
        r"no encoder for extension 'label': name the field by a format that holds int, such as label.cls, ",
    ),
    "an index beside no file": (
        lambda f: wds.TarWriter(io.BytesIO(), index="dali"),
        r"no local file: write to a path, or leave index= out and call wds.write_indexes\(url, formats, folder=",
    ),
    "a size in words": (
        lambda f: wds.ShardWriter(str(f / "o-%d.tar"), maxsize="1GB"),  # type: ignore[arg-type]
        "maxsize='1GB' are numbers: of samples, and of bytes",
    ),
    "a misspelt argument of ShardWriter": (
        lambda f: wds.ShardWriter(str(f / "o-%d.tar"), max_count=3),
        r"^ShardWriter\(\) got an unexpected keyword argument 'max_count'; write maxcount=",
    ),
    "a misspelt argument of RecordShardWriter": (
        lambda f: wds.RecordShardWriter(str(f / "o-%d.cbors"), compres="gz"),
        r"^RecordShardWriter\(\) got an unexpected keyword argument 'compres'; did you mean 'compress'\?",
    ),
    "a state as its text": (
        lambda f: read(f, seed=1).elastic().load_state_dict("state.json"),
        "a state is a dictionary: json.load reads it from a file",
    ),
    "shuffle=": (
        lambda f: read(f, shuffle=True),
        r"'shuffle'; shardshuffle=100 shuffles the shards, .*\.shuffle\(1000\)",
    ),
    "shardshufle=": (lambda f: wds.WebDataset("x.tar", shardshufle=1), "did you mean 'shardshuffle'"),  # type: ignore[call-arg]
    "batch_size=": (lambda f: read(f, batch_size=4), r"\.batched\(64\) makes batches"),
    "num_workers=": (lambda f: read(f, num_workers=4), r"wds.Loader\(dataset, 64, workers=4\)"),
    "a field that is not there": (lambda f: list(read(f).to_tuple("jpeg")), "no field 'jpeg'; .* did you mean 'jpg'"),
    "map_dict of another field": (
        lambda f: list(read(f).map_dict(jpeg=len)),
        "no field 'jpeg'; the sample has __key__, ",
    ),
    "a damaged image": (
        lambda f: list(read(f).decode("rgb")),
        r"could not be decoded: UnidentifiedImageError.*key='000'",
    ),
    "an unknown decoder": (
        lambda f: list(read(f).decode("RGB")),
        "unknown image spec or format 'RGB'; there are the specs l8",
    ),
    "decoding twice": (lambda f: list(read(f).decode().decode()), "has the sample been decoded already"),
    "a key in place of a number": (
        lambda f: wds.IndexedDataset(str(f / "s-0000.tar"))["003"],  # type: ignore[call-overload]
        r"write dataset.by_key\('003'\)",
    ),
    "several numbers": (
        lambda f: wds.IndexedDataset(str(f / "s-0000.tar"))[[1, 2]],  # type: ignore[call-overload]
        r"dataset\[\[1, 2\]\]: one number, or a slice; for more, \[dataset\[n\] for n in numbers\]",
    ),
    "a sample beyond the last": (
        lambda f: wds.IndexedDataset(str(f / "s-0000.tar"))[99],
        "no sample 99: the dataset has 5",
    ),
    "a lock in a lambda": (
        lambda f: spawn_loader(read(f).map(lambda sample: (LOCK, sample)[1])),
        r"its stage 5, map with <lambda> \(.*test_mistakes.py:\d+\), cannot be pickled: .*lock.*mode='threads'",
    ),
    "a state of a plain dataset": (lambda f: read(f).state_dict(), r"make it elastic, dataset.elastic\(\)"),
    "a state of its iterator": (lambda f: iter(read(f)).state_dict(), r"make it elastic, dataset.elastic\(\)"),
    "a sample without a key": (
        lambda f: wds.TarWriter(str(f / "o.tar")).write({"txt": ""}),
        "a sample is a dict with a __key__; this one has 'txt'",
    ),
    "a stage that returns nothing": (
        lambda f: list(read(f).compose(keep_nothing)),
        r"the stage keep_nothing \(.*test_mistakes.py:\d+\) returned NoneType: a stage is a generator, or returns an",
    ),
    "an opener that returns nothing": (
        lambda f: open_with(lambda *_arguments, **_options: None),
        "what opens this url returned None: an opener returns a file object .*url='nothing://x'",
    ),
    "an epoch that is no number": (lambda f: read(f).set_epoch("1"), r"set_epoch\('1'\): an epoch is a whole number"),
    "a misspelt rule of documents": (
        lambda f: read(f).interleaved(missing_images="error"),
        r"^interleaved\(\) got an unexpected keyword argument 'missing_images'; did you mean 'missing_image'\?",
    ),
    "a misspelt rule of an index": (
        lambda f: wds.write_indexes(str(f / "s-0000.tar"), "files", duplicate="first"),
        r"^write_indexes\(\) got an unexpected keyword argument 'duplicate'; did you mean 'duplicates'\?",
    ),
    "a misspelt rule of an indexed dataset": (
        lambda f: wds.IndexedDataset(str(f / "s-0000.tar"), select_file=bool),
        r"^IndexedDataset\(\) got an unexpected keyword argument 'select_file'; did you mean 'select_files'\?",
    ),
    "a misspelt rule of an indexed shard": (
        lambda f: wds.IndexedShard(str(f / "s-0000.tar"), decoder="rgb"),
        r"^IndexedShard\(\) got an unexpected keyword argument 'decoder'",
    ),
    "rules of reading twice": (
        lambda f: wds.IndexedShard(str(f / "s-0000.tar"), reading=Reading(), duplicates="first"),
        "pass either reading= or duplicates",
    ),
    "a misspelt argument of wids": (
        lambda f: ShardListDataset(str(f / "s-0000.tar"), prefech=3),
        r"^ShardListDataset\(\) got an unexpected keyword argument 'prefech'; did you mean 'prefetch'\?",
    ),
    "a format of records that there is not": (
        lambda f: wds.RecordWriter(str(f / "x.records"), format="json"),
        "format='json' is unknown: pass 'cbor' or 'msgpack'",
    ),
    "a shuffle of torch's loader over a stream": (
        lambda f: wds.WebLoader(read(f), shuffle=True),
        r"a stream shuffles itself: WebDataset\(urls, shardshuffle=100\)\.shuffle\(1000\)",
    ),
    "a state beside a model's": (
        lambda f: read(f, seed=1).elastic().load_state_dict({"data": read(f, seed=1).elastic().state_dict()}),
        r"it holds one: pass state\['data'\]",
    ),
    "a state of something else": (
        lambda f: read(f, seed=1).elastic().load_state_dict({"fc.weight": [1]}),
        r"pass what state_dict\(\) of the dataset, its iterator or its loader returned",
    ),
    "operators of other languages": (lambda f: read(f, where="cls > 1 && cls < 3"), "; write and, or, not"),
    "a tab in a specification": (
        lambda f: wds.load_spec(make_file(f / "tab.yaml", "version: 1\nsources:\n\t- shards: a.tar\n")),
        "indent with spaces",
    ),
    "a program that is not installed": (
        lambda f: list(wds.WebDataset("pipe:no-such-program x.tar", shardshuffle=False)),
        "exit status 127: the shell did not find the program; install it, or add its folder to PATH",
    ),
    "random access to a compressed shard": (
        lambda f: wds.IndexedDataset(str(f / "json.tar.gz"))[0],
        "for random access decompress it: wds recompress --to none",
    ),
    "members without extensions": (
        lambda f: list(read(f, select_files=lambda name: name == "x")),
        "wds ls --members SHARD lists what a shard holds; empty_check=False allows",
    ),
    "a wrong list": (lambda f: wds.WebDataset([]), "an empty list of shards"),
    "a shard that cannot be written": (
        lambda f: wds.ShardWriter(str(f / "o-%d.tar")).write({"__key__": "a", "jpg": {}}),
        "dict is no image",
    ),
    "a map that returns nothing": (lambda f: list(read(f).map(lambda sample: None)), "returned None for"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_message(mistake, folder, recwarn):
    """Each is an error of a class that programs can catch, whose text says what to do."""
    if "torch's" in mistake:
        pytest.importorskip("torch")
    make, message = MISTAKES[mistake]
    with pytest.raises((wds.WebDatasetError, TypeError, AttributeError), match=f"(?s){message}"):
        make(folder)


SHORT = ["an HTML page", "no such file", "a field that is not there", "map_dict of another field", "a damaged image",
         "a path in the place of an image",
         "a state of something else", "a wrong list", "a shard that cannot be written",
         "decoding twice", "a sample beyond the last", "a map that returns nothing", "a lock in a lambda"]  # fmt: skip


@pytest.mark.parametrize("mistake", SHORT)
def test_tracebacks_show_users_frames_alone(mistake, folder, monkeypatch):
    """No frame of this library, nor of those that it calls; a setting shows them."""
    make, _ = MISTAKES[mistake]
    ours = os.path.dirname(wds.__file__)
    for full in ("1", "0"):
        monkeypatch.setenv("WDS_FULL_TRACEBACKS", full)
        with pytest.raises(wds.WebDatasetError) as failure:
            make(folder)
        text = "".join(traceback.format_exception(failure.value))
        assert (f'File "{ours}' in text) is (full == "1")
        assert full == "1" or len(text.splitlines()) <= 14, text
        assert "test_mistakes.py" in text


def test_frames_of_users_functions_stay(folder, monkeypatch):
    """Of a stage of theirs through which an error passes, and of all that errors of other classes have."""
    monkeypatch.setenv("WDS_FULL_TRACEBACKS", "0")

    def stage_of_mine(samples):
        yield from samples

    for dataset in (
        read(folder).compose(stage_of_mine).to_tuple("none"),
        read(folder, "zip.tar").compose(stage_of_mine),
    ):
        with pytest.raises(wds.WebDatasetError) as failure:
            list(dataset)
        names = [frame.name for frame in traceback.extract_tb(failure.value.__traceback__)]
        assert ("stage_of_mine" in names) is (dataset.pipeline[0] is not None and "zip" in str(failure.value.url))
    with pytest.raises(ZeroDivisionError) as failure:
        list(read(folder).map(lambda sample: 1 / 0))
    assert len(traceback.extract_tb(failure.value.__traceback__)) > 3


def test_a_program_that_fails_prints_few_lines(folder):
    """As a user sees it, in a process of its own."""
    program = "import webdataset as wds\nlist(wds.WebDataset('none.tar', shardshuffle=False).to_tuple('a'))\n"
    environment = {name: value for name, value in os.environ.items() if name != "WDS_FULL_TRACEBACKS"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    lines = done.stderr.splitlines()
    assert len(lines) <= 9
    assert [line for line in lines if line.startswith('  File "')] == ['  File "<string>", line 2, in <module>']
    assert lines[-1].startswith("webdataset.core.errors.NotFound: cannot open: No such file")


def test_warnings_point_at_the_users_line(folder):
    """Of reading, handlers, writers and lists, however deep they are: the file that is shown is the user's."""
    cut = folder / "cut.tar"
    cut.write_bytes((folder / "s-0000.tar").read_bytes()[:1024])
    uses = {
        "damage": lambda: list(wds.WebDataset([str(cut), str(folder / "s-0000.tar")], handler=wds.warn_and_continue)),
        "end": lambda: list(read(folder, "cut.tar", missing_end="warn")),
        "keys": lambda: wds.TarWriter(str(folder / "k.tar")).write({"__key__": "a.b", "txt": ""}),
        "length": lambda: [list(dataset) for dataset in [read(folder).with_length(3)]],
    }
    for name, use in uses.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use()
        shown = [each.filename for each in caught if issubclass(each.category, UserWarning)]
        assert shown, name
        assert set(shown) == {__file__}, name


@pytest.mark.parametrize("handler", ["ignore", True])
def test_a_handler_that_is_no_function_is_refused_where_it_is_given(handler):
    """Not with the first error, hours later."""
    dataset = wds.WebDataset("a.tar", shardshuffle=False)
    uses = {
        "map": lambda: dataset.map(str, handler),
        "decode": lambda: dataset.decode(handler=handler),
        "to_tuple": lambda: dataset.to_tuple("a", handler=handler),
        "pack": lambda: dataset.pack(8, handler=handler),
        "bucket": lambda: dataset.bucket("a", batch_size=2, handler=handler),
        "reader": lambda: wds.tarfile_to_samples(handler=handler),
        "dataset": lambda: wds.WebDataset("a.tar", handler=handler),
    }
    found = {}
    for name, use in uses.items():
        with pytest.raises(UsageError) as raised:
            use()
        found[name] = str(raised.value).partition(": a function of the exception")[0]
    assert found == dict.fromkeys(uses, f"handler={handler!r}")


def test_no_handler_is_the_default(folder):
    """None in its place raises the error itself, as programs mean it."""
    for dataset in (read(folder).map(lambda sample: 1 / 0, None), read(folder, handler=None).map(lambda sample: 1 / 0)):
        with pytest.raises(ZeroDivisionError):
            list(dataset)
    with pytest.raises(wds.WebDatasetError, match="No such file"):
        list(read(folder, "none.tar", handler=None))


def test_a_dictionary_of_datasets_is_no_mix():
    """It would mix its keys."""
    with pytest.raises(UsageError, match=r"this is a dictionary: pass list\(datasets.values\(\)\)"):
        wds.RandomMix({"a": wds.WebDataset("a.tar", shardshuffle=False)}, [1])
