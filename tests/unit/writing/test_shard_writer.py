"""Series of shards: bounds, numbering, callbacks, and what stays after a failure."""

import io
import logging
import tarfile

import pytest

import webdataset as wds
from webdataset.core.errors import AlreadyExists, EncodingError, SampleError, SourceError, UsageError
from webdataset.writing.shard_writer import ShardWriter
from webdataset.writing.tar_writer import TarWriter


def sample(index, size=3):
    """Return a sample with a payload of ``size`` bytes."""
    return {"__key__": f"{index:04d}", "x": bytes(size)}


def samples(count, size=3, failing=False):
    """Yield samples; at their end the source may fail."""
    for index in range(count):
        yield sample(index, size)
    if failing:
        raise ZeroDivisionError


def put(writer, samples):
    """Write samples."""
    for each in samples:
        writer.write(each)


def contents(folder):
    """Return the member names of each shard in a folder."""
    found = {}
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as opened:
            found[path.name] = opened.getnames()
    return found


def test_maxcount(tmp_path):
    """A new shard begins when a sample comes to one that has maxcount of them."""
    with ShardWriter(f"{tmp_path}/a-%02d.tar", maxcount=2, encoder=False) as writer:
        seen = []
        for index in range(5):
            assert writer.write(sample(index)) == 3
            seen.append((writer.fname[-7:], writer.shard, writer.total, writer.count, writer.size))
    assert seen == [
        ("-00.tar", 1, 1, 1, 3),
        ("-00.tar", 1, 2, 2, 6),
        ("-01.tar", 2, 3, 1, 3),
        ("-01.tar", 2, 4, 2, 6),
        ("-02.tar", 3, 5, 1, 3),
    ]
    assert contents(tmp_path) == {
        "a-00.tar": ["0000.x", "0001.x"],
        "a-01.tar": ["0002.x", "0003.x"],
        "a-02.tar": ["0004.x"],
    }


def test_maxsize(tmp_path):
    """The sample that reaches maxsize bytes of payload is its shard's last."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", maxsize=10, encoder=False) as writer:
        for index in range(8):
            writer.write(sample(index, size=4))
    assert [len(names) for names in contents(tmp_path).values()] == [3, 3, 2]


def test_exactly_full_shards(tmp_path):
    """No empty shard follows a last shard that is exactly full."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", maxcount=2, encoder=False) as writer:
        for index in range(4):
            writer.write(sample(index))
    assert list(contents(tmp_path)) == ["a-0.tar", "a-1.tar"]


def test_post_sees_complete_shards(tmp_path):
    """Post is called with the name of each shard when it is complete."""
    seen = []

    def post(name):
        with tarfile.open(name) as opened:
            seen.append((name[-7:], opened.getnames()))

    with ShardWriter(f"{tmp_path}/a-%02d.tar", maxcount=1, post=post, encoder=False) as writer:
        writer.write(sample(0))
        assert seen == []
        writer.write(sample(1))
        assert seen == [("-00.tar", ["0000.x"])]
    assert seen[1:] == [("-01.tar", ["0001.x"])]


def test_unused_writer_leaves_nothing(tmp_path):
    """A writer that got no sample makes no file and calls nobody."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", post=pytest.fail, encoder=False) as writer:
        assert (writer.fname, writer.shard) == (f"{tmp_path}/a-0.tar", 0)
        assert writer.tarstream is None
    assert list(tmp_path.iterdir()) == []


def test_attributes_stay_readable(tmp_path):
    """After close all attributes are still there, and closing again is harmless."""
    writer = ShardWriter(f"{tmp_path}/a-%d.tar", maxcount=2, start_shard=4, encoder=False)
    for index in range(3):
        writer.write(sample(index))
    writer.close()
    writer.close()
    assert (writer.fname, writer.shard, writer.total, writer.count, writer.size) == (f"{tmp_path}/a-5.tar", 6, 3, 1, 3)
    assert isinstance(writer.tarstream, TarWriter)
    with pytest.raises(UsageError, match="closed"):
        writer.write(sample(9))


def test_next_stream(tmp_path):
    """next_stream() begins a new shard at will; the first call does not skip the first number."""
    writer = ShardWriter(f"{tmp_path}/a-%d.tar", encoder=False)
    for index in range(3):
        writer.next_stream()
        writer.write(sample(index))
    writer.shard = 7
    writer.next_stream()
    writer.write(sample(7))
    writer.next_stream()
    writer.close()
    assert list(contents(tmp_path)) == ["a-0.tar", "a-1.tar", "a-2.tar", "a-7.tar"]


def test_shard_may_be_set_first(tmp_path):
    """A number that is set before the first sample is the first shard's."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", encoder=False) as writer:
        writer.shard = 3
        writer.write(sample(0))
    assert list(contents(tmp_path)) == ["a-3.tar"]


def test_finish_then_write(tmp_path):
    """After finish() the next sample begins the next shard."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", encoder=False) as writer:
        writer.write(sample(0))
        writer.finish()
        assert list(contents(tmp_path)) == ["a-0.tar"]
        writer.write(sample(1))
    assert list(contents(tmp_path)) == ["a-0.tar", "a-1.tar"]


def test_exception_keeps_complete_shards_only(tmp_path):
    """After an exception inside `with` finished shards stay; the one in progress is not there, nor posted."""
    posted = []
    with (
        pytest.raises(ZeroDivisionError),
        ShardWriter(f"{tmp_path}/a-%d.tar", maxcount=2, post=posted.append, encoder=False) as writer,
    ):
        put(writer, samples(3, failing=True))
    assert list(contents(tmp_path)) == ["a-0.tar"]
    assert posted == [f"{tmp_path}/a-0.tar"]


def test_a_bad_sample_does_not_end_the_shard(tmp_path):
    """A sample that cannot be encoded may be skipped; the shard goes on."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", encoder=False) as writer:
        with pytest.raises(EncodingError):
            writer.write({"__key__": "a", "x": 5})
        writer.write(sample(1))
        assert writer.total == 1
    assert contents(tmp_path) == {"a-0.tar": ["0001.x"]}


def test_only_bad_samples_leave_nothing(tmp_path):
    """A shard whose every sample failed is not made."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", encoder=False) as writer, pytest.raises(SampleError):
        writer.write({"x": b""})
    assert list(tmp_path.iterdir()) == []


def test_broken_output_stops_the_series(tmp_path):
    """After a failed write no new shard is begun behind the user's back."""

    class Full(io.BytesIO):
        def write(self, piece):
            if self.tell() > 20_000:
                raise OSError(28, "No space left on device")
            return super().write(piece)

    writer = ShardWriter(f"{tmp_path}/a-%d.tar", opener=lambda name: Full(), encoder=False)
    with pytest.raises(OSError, match="No space"):
        put(writer, samples(1000, size=10_000))
    with pytest.raises(UsageError, match="broken"):
        writer.write(sample(1000))
    with pytest.raises(SourceError, match="not complete"):
        writer.close()


def test_opener(tmp_path):
    """An opener gives the file object of each shard, which is closed with it."""
    opened = {}

    class Store(io.BytesIO):
        def close(self):
            self.kept = self.getvalue()
            super().close()

    def opener(name):
        opened[name] = Store()
        return opened[name]

    with ShardWriter("a-%d.tar", maxcount=1, opener=opener, encoder=False) as writer:
        writer.write(sample(0))
        writer.write(sample(1))
    assert list(opened) == ["a-0.tar", "a-1.tar"]
    assert [len(store.kept) for store in opened.values()] == [2048, 2048]


def test_arguments_of_the_shards(tmp_path):
    """Further arguments are TarWriter's; compression goes by the name."""
    with ShardWriter(f"{tmp_path}/a-%d.tgz", encoder=None, mode=0o600, mtime=5, user="me") as writer:
        writer.write(sample(0))
    with tarfile.open(tmp_path / "a-0.tgz", "r:gz") as opened:
        (member,) = opened.getmembers()
    assert (member.mode, member.mtime, member.uname) == (0o600, 5, "me")


def test_overwriting(tmp_path):
    """By default old shards are replaced; with overwrite=False one that is there already is an error."""
    for _ in range(2):
        with ShardWriter(f"{tmp_path}/a-%d.tar", encoder=False) as writer:
            writer.write(sample(0))
    with pytest.raises(AlreadyExists), ShardWriter(f"{tmp_path}/a-%d.tar", encoder=False, overwrite=False) as writer:
        writer.write(sample(1))
    assert contents(tmp_path) == {"a-0.tar": ["0000.x"]}


def test_two_writers_of_one_name(tmp_path):
    """Two writers with one pattern at the same time: the second to finish fails and keeps the first's shard."""
    first, second = (ShardWriter(f"{tmp_path}/a-%d.tar", encoder=False) for _ in range(2))
    first.write(sample(1))
    second.write(sample(2))
    first.close()
    with pytest.raises(AlreadyExists, match=r"{rank} and {worker}"):
        second.close()
    assert contents(tmp_path)["a-0.tar"] == ["0001.x"]


def test_dotted_keys_warn_once_a_series(tmp_path):
    """The warning about keys with dots is given once, not once a shard; check_keys reaches the shards."""
    writer = ShardWriter(f"{tmp_path}/a-%d.tar", maxcount=1, encoder=False)
    with pytest.warns(UserWarning, match="a dot in the last part") as caught:
        put(writer, ({"__key__": f"a.{index}", "x": b""} for index in range(3)))
    writer.close()
    assert len(caught) == 1
    with ShardWriter(f"{tmp_path}/b-%d.tar", check_keys="error", encoder=False) as writer, pytest.raises(SampleError):
        writer.write({"__key__": "a.1", "x": b""})


def test_names_are_logged(tmp_path, caplog, capsys):
    """Names of shards go to the log, not to the terminal; verbose=0 logs nothing."""
    for verbose in (1, 0):
        with (
            caplog.at_level(logging.INFO, "webdataset"),
            ShardWriter(f"{tmp_path}/a{verbose}-%d.tar", verbose=verbose, encoder=False) as writer,
        ):
            writer.write(sample(0))
    assert "a1-0.tar" in caplog.text
    assert "a0-0.tar" not in caplog.text
    assert capsys.readouterr() == ("", "")


def test_functions_as_patterns(tmp_path):
    """A function of the number is asked once for each shard, in order."""
    asked = []

    def name(shard):
        asked.append(shard)
        return f"{tmp_path}/{'abc'[shard]}.tar"

    with ShardWriter(name, maxcount=1, encoder=False) as writer:
        for index in range(3):
            writer.write(sample(index))
    assert list(contents(tmp_path)) == ["a.tar", "b.tar", "c.tar"]
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("options", [{"maxcount": 0}, {"maxsize": 0}])
def test_bounds_that_leave_no_room(options):
    """A shard must be able to hold a sample."""
    with pytest.raises(UsageError, match="no room"):
        ShardWriter("a-%d.tar", **options)


def test_positional_arguments(tmp_path):
    """The order of upstream's arguments holds."""
    posted = []
    with ShardWriter(f"{tmp_path}/a-%d.tar", 1, 100, posted.append, 3, 0, None, encoder=False) as writer:
        writer.write(sample(0))
        writer.write(sample(1))
    assert [name[-5:] for name in posted] == ["3.tar", "4.tar"]


def test_parts_of_a_sample_stay_in_one_shard(tmp_path):
    """A full shard takes further parts of its last sample; the next sample begins a new one."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", maxcount=2, check_keys="ignore", encoder=False, verbose=0) as writer:
        for index in range(4):
            for field in "xyz":
                writer.write({"__key__": str(index), field: b"1"})
    assert contents(tmp_path) == {f"a-{index}.tar": [f"{index}.x", f"{index}.y", f"{index}.z"] for index in range(4)}


def test_next_stream_of_a_program(tmp_path, monkeypatch):
    """What a program puts in the place of ``next_stream`` is called for each shard, and may return nothing."""
    opened = []

    class Announcing(ShardWriter):
        def next_stream(self):
            super().next_stream()
            opened.append(self.fname[-7:])

    with Announcing(f"{tmp_path}/a-%d.tar", maxcount=2, encoder=False, verbose=0) as writer:
        put(writer, samples(3))
    before = ShardWriter.next_stream

    def next_stream(self):
        opened.append("patched")
        before(self)

    monkeypatch.setattr(ShardWriter, "next_stream", next_stream)
    with ShardWriter(f"{tmp_path}/b-%d.tar", encoder=False, verbose=0) as writer:
        put(writer, samples(3))
    assert opened == ["a-0.tar", "a-1.tar", "patched"]
    assert [len(names) for names in contents(tmp_path).values()] == [2, 1, 3]
    monkeypatch.setattr(ShardWriter, "next_stream", lambda self: None)
    with pytest.raises(UsageError, match="has opened no shard"):
        ShardWriter(f"{tmp_path}/c-%d.tar", encoder=False, verbose=0).write(sample(0))


def test_another_pattern(tmp_path):
    """A pattern that is set names the shards from the next one on; one that cannot name any is refused at once."""
    with ShardWriter(f"{tmp_path}/a-%d.tar", maxcount=1, encoder=False, verbose=0) as writer:
        put(writer, samples(2))
        writer.pattern = f"{tmp_path}/b-%02d.tar"
        with pytest.raises(UsageError, match="no single place"):
            writer.pattern = "c.tar"
        put(writer, samples(2))
    assert writer.pattern == f"{tmp_path}/b-%02d.tar"
    assert sorted(contents(tmp_path)) == ["a-0.tar", "a-1.tar", "b-02.tar", "b-03.tar"]


@pytest.mark.parametrize(
    ("writer", "keywords", "words"),
    [
        (
            wds.ShardWriter,
            {"max_count": 5},
            r"ShardWriter\(\) got an unexpected keyword .*'max_count'; write maxcount=",
        ),
        (wds.ShardWriter, {"compression": "gz"}, r"'compression'; write compress='gz'"),
        (wds.RecordShardWriter, {"usr": "me"}, r"RecordShardWriter\(\) got an unexpected keyword argument 'usr'"),
        (wds.RecordShardWriter, {"keepmeta": True}, r"did you mean 'keep_meta'"),
    ],
)
def test_misspelt_keywords_are_refused_before_the_first_sample(tmp_path, writer, keywords, words):
    """A job that computes for an hour before it writes says so at once."""
    with pytest.raises(TypeError, match=words):
        writer(str(tmp_path / "%03d.cbor"), **keywords)
