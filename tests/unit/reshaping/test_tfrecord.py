"""TFRecord files: records, their checksums, and the features of Examples."""

import gzip
import struct

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from webdataset.core.errors import FormatError, SampleError, Truncated, UsageError
from webdataset.reshaping.field_values import RowConverter
from webdataset.reshaping.tfrecord import make_crc32c, mask_crc32c, parse_example, read_records, read_tfrecord


def declare():
    """The messages as TensorFlow declares them: a map of features, and a oneof of their kinds."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="t", syntax="proto3")

    def add(message, name, number, kind, *, many=False, oneof=False):
        field = message.field.add(name=name, number=number, label=3 if many else 1)
        if isinstance(kind, str):
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".t.{kind}"
        else:
            field.type = kind
        if oneof:
            field.oneof_index = 0

    for name, kind in (
        ("BytesList", kinds.TYPE_BYTES),
        ("FloatList", kinds.TYPE_FLOAT),
        ("Int64List", kinds.TYPE_INT64),
    ):
        add(file.message_type.add(name=name), "value", 1, kind, many=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes_list", "float_list", "int64_list"), 1):
        add(feature, name, number, ("BytesList", "FloatList", "Int64List")[number - 1], oneof=True)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, kinds.TYPE_STRING)
    add(entry, "value", 2, "Feature")
    add(features, "feature", 1, "Features.FeatureEntry", many=True)
    add(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


EXAMPLE = declare()


def example(**features):
    """The bytes of an Example: lists of bytes, floats or ints by name."""
    made = EXAMPLE()
    for name, values in features.items():
        feature = made.features.feature[name]
        if values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
            feature.int64_list.SetInParent()
    return made.SerializeToString()


def frame(content):
    """A record."""
    crc = make_crc32c()
    length = struct.pack("<Q", len(content))
    return b"".join(
        (
            length,
            struct.pack("<I", mask_crc32c(crc(length, 0))),
            content,
            struct.pack("<I", mask_crc32c(crc(content, 0))),
        )
    )


def write(path, *contents):
    """A file of records; its path."""
    path.write_bytes(b"".join(map(frame, contents)))
    return str(path)


def test_crc32c_vectors():
    """The checksum is Castagnoli's: the vectors of RFC 3720, and a record that TensorFlow wrote."""
    crc = make_crc32c()
    assert [crc(bytes(32), 0), crc(b"\xff" * 32, 0), crc(bytes(range(32)), 0)] == [0x8A9136AA, 0x62A8AB43, 0x46DD794E]
    assert crc(b"6789", crc(b"12345", 0)) == 0xE3069283


def test_values(tmp_path):
    """One value is a value, others a list; text is told by its bytes; floats keep their 32 bits."""
    content = example(
        caption=[b"h\xc3\xa9"], image=[b"\x89PNG\r\n\x1a\nx"], raw=[b"\xff\x00"], label=[-3], score=[0.1], many=[1, 2],
        none=[], words=[b"a", b"b"], blobs=[b"\xff", b"a"],
    )  # fmt: skip
    url = write(tmp_path / "x.tfrecord", content)
    (sample,) = RowConverter().convert(read_tfrecord(url))
    fields = sample.payloads()
    assert fields.pop("score.json") == repr(float(np.float32(0.1))).encode()
    assert fields.pop("blobs.mp")
    assert fields == {
        "caption.txt": b"h\xc3\xa9", "image.png": b"\x89PNG\r\n\x1a\nx", "raw.bin": b"\xff\x00", "label.cls": b"-3",
        "many.json": b"[1,2]", "none.json": b"[]", "words.json": b'["a","b"]',
    }  # fmt: skip
    assert sample.key == "000000000"


def test_names_choose_the_extension(tmp_path):
    """A feature that is renamed to an extension is written under it, text or not; numbers to npy are an array."""
    url = write(tmp_path / "x.tfrecord", example(image=[b"text"], box=[1, 2], id=[b"k1"]))
    rules = RowConverter(key="id", rename={"jpg": "image"}, columns=("image", "box"))
    (sample,) = rules.convert(read_tfrecord(url))
    assert (sample.key, set(sample.fields)) == ("k1", {"jpg", "box.json"})
    assert parse_example(example(**{"x.npy": [1, 2]}))["x.npy"].tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["plain", "gz"])
def test_compressed(tmp_path, kind):
    """Files are decompressed by their content; several records come in their order with their offsets."""
    contents = [example(a=[number]) for number in range(300)]
    path = tmp_path / "x.tfrecord"
    write(path, *contents)
    if kind == "gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    found = list(read_records(str(path)))
    assert [content for _, content in found] == contents
    assert [offset for offset, _ in found][:2] == [0, len(contents[0]) + 16]


def test_every_changed_byte_is_noticed(tmp_path):
    """No byte of a file can change without an error that has the record's offset; what is whole before it is given."""
    contents = [example(a=[1], b=[b"xy"]), example(a=[2])]
    whole = b"".join(map(frame, contents))
    second = len(contents[0]) + 16
    path = tmp_path / "x.tfrecord"
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        found, error = [], None
        try:
            for _, content in read_records(str(path)):
                if isinstance(content, FormatError):
                    error = content
                else:
                    found.append(content)
        except FormatError as raised:
            error = raised
        assert getattr(error, "offset", None) == (0 if place < second else second), place
        assert all(content in contents for content in found)
        assert contents[0] in found or place < second


def test_every_cut_is_noticed(tmp_path):
    """A file cut anywhere but between records is an error."""
    contents = [example(a=[1]), example(a=[2])]
    whole = b"".join(map(frame, contents))
    path = tmp_path / "x.tfrecord"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        if length == len(contents[0]) + 16:
            assert len(list(read_records(str(path)))) == 1
        else:
            with pytest.raises(Truncated):
                list(read_records(str(path)))


def test_damaged_record_can_be_left_out(tmp_path):
    """A record whose bytes fail their checksum is told of, and the next is read."""
    url = write(tmp_path / "x.tfrecord", example(a=[1]), example(a=[2]))
    whole = bytearray((tmp_path / "x.tfrecord").read_bytes())
    whole[14] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(whole)
    told = []
    rules = RowConverter(failed=lambda place, error: told.append((place, error)))
    assert [sample.payloads() for sample in rules.convert(read_tfrecord(url))] == [{"a.cls": b"2"}]
    assert [place for place, _ in told] == ["the record at offset 0"]
    with pytest.raises(FormatError, match="checksum"):
        list(RowConverter().convert(read_tfrecord(url)))


def length_delimited(number, content):
    """A field of a message."""
    return bytes([number << 3 | 2, len(content)]) + content


def test_what_is_no_example(tmp_path):
    """A SequenceExample, and bytes that are no message, are one field with all their bytes."""
    sequence = example(a=[1]) + length_delimited(2, b"")
    url = write(tmp_path / "x.tfrecord", sequence, b"\xff\xff\xff", b"")
    told = []
    samples = list(RowConverter(failed=lambda *failure: told.append(failure)).convert(read_tfrecord(url)))
    assert [sample.payloads() for sample in samples] == [{"record.bin": sequence}, {"record.bin": b"\xff\xff\xff"}]
    # an Example without features has no value
    assert [place for place, _ in told] == ["the record at offset " + str(len(sequence) + 16 + 3 + 16)]


def test_what_a_map_would_hide():
    """Two features of one name, and one of two kinds, are errors: protobuf's own map and oneof keep the last."""
    one, two = example(a=[1]), example(a=[2])
    both = length_delimited(1, one[2:] + two[2:])
    assert EXAMPLE.FromString(both).features.feature["a"].int64_list.value == [2]
    with pytest.raises(FormatError, match="two features"):
        parse_example(both)
    feature = length_delimited(1, b"") + length_delimited(3, b"")
    kinds = length_delimited(1, length_delimited(1, length_delimited(1, b"a") + length_delimited(2, feature)))
    with pytest.raises(FormatError, match="several kinds"):
        parse_example(kinds)


def test_options_that_name_nothing(tmp_path):
    """A name that the first record does not have is an error at once."""
    url = write(tmp_path / "x.tfrecord", example(a=[1]))
    with pytest.raises(UsageError, match="'b'"):
        list(read_tfrecord(url, names=frozenset(["b"])))
    with pytest.raises(SampleError, match="no key"):
        list(RowConverter(key="b").convert(read_tfrecord(url)))
