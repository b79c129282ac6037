"""The compatibility module `webdataset.writer`: names, late binding to the table of encoders, imports."""

import io
import subprocess
import sys
import tarfile

import pytest

import webdataset as wds
from webdataset import codecs, writer


def archive(sample, **options):
    """Return member contents of an archive of one sample."""
    stream = io.BytesIO()
    with wds.TarWriter(stream, **options) as sink:
        sink.write(sample)
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}


def test_names():
    """All names that code imports from here are served, and two at the top level."""
    for name in writer.__all__:
        assert callable(getattr(writer, name)) or name == "default_handlers"
    assert wds.TarWriter is writer.TarWriter
    assert wds.ShardWriter is writer.ShardWriter
    assert wds.numpy_dumps is writer.numpy_dumps
    assert writer.default_handlers is codecs.default_handlers


def test_values_are_encoded_by_extension():
    """With encoder=True, the default, values become bytes by their extension; bytes stay."""
    sample = {"__key__": "a", "cls": 5, "txt": "hé", "json": {"x": [1]}, "bin": b"\0", "_meta": "m"}
    assert archive(sample) == {"a.cls": b"5", "a.txt": "hé".encode(), "a.json": b'{"x":[1]}', "a.bin": b"\0"}


def test_json_given_as_text_bytes_or_value():
    """JSON fields may be values or bytes already encoded."""
    for value in ({"x": 1}, b'{"x":1}'):
        assert archive({"__key__": "a", "json": value}) == {"a.json": b'{"x":1}'}


def test_gz_fields_are_compressed():
    """A further .gz compresses the encoded value, the same in every run."""
    first, second = (archive({"__key__": "a", "txt.gz": "hello"})["a.txt.gz"] for _ in range(2))
    assert first == second
    assert first[:2] == b"\x1f\x8b"


def test_encoder_dict_replaces_extensions():
    """A dict of functions comes before the table."""
    sample = {"__key__": "a", "x": 5, "cls": 7}
    assert archive(sample, encoder={"x": lambda value: b"<%d>" % value}) == {"a.x": b"<5>", "a.cls": b"7"}


def test_default_handlers_are_live(monkeypatch):
    """An entry added to default_handlers takes effect at the next sample."""
    monkeypatch.setitem(writer.default_handlers, "mine", lambda value: value[::-1].encode() + b"!")
    assert archive({"__key__": "a", "mine": Backwards("xy")}) == {"a.mine": b"yx!"}


class Backwards:
    """Something that is no text, but can be reversed into one."""

    def __init__(self, text):
        self.text = text

    def __getitem__(self, index):
        return self.text[index]


def test_encoding_errors_name_their_place(tmp_path):
    """A value that no encoder takes names key, field and file; the sample is not written, the next one is."""
    with wds.TarWriter(tmp_path / "a.tar") as sink:
        with pytest.raises(ValueError, match="unknownext") as caught:
            sink.write({"__key__": "k", "cls": 1, "unknownext": object()})
        assert (caught.value.key, caught.value.field) == ("k", "unknownext")
        assert caught.value.url.endswith("a.tar")
        sink.write({"__key__": "l", "cls": 1})
    with tarfile.open(tmp_path / "a.tar") as opened:
        assert opened.getnames() == ["l.cls"]


@pytest.mark.parametrize("sample", [[], 5, None, ("__key__",)])
def test_samples_are_dicts(sample):
    """Anything but a dict is an error that says so."""
    with pytest.raises(ValueError, match="dict with a __key__"):
        archive(sample)


def test_shards_of_encoded_samples(tmp_path):
    """ShardWriter hands encoder arguments on."""
    with wds.ShardWriter(f"{tmp_path}/a-%d.tar", maxcount=2, encoder={"x": str.encode}) as sink:
        for index in range(3):
            sink.write({"__key__": str(index), "cls": index})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-0.tar", "a-1.tar"]


def test_import_is_light():
    """Importing the compatibility module loads neither torch nor numpy nor Pillow."""
    program = "import sys, webdataset.writer; print([m for m in ('torch', 'numpy', 'PIL') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
