"""Raw samples of damaged archives: the verdict of the shard reader, and the same samples before it."""

import io
import tarfile
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.errors import WebDatasetError
from webdataset.samples.raw_samples import RawSamples, read_members
from webdataset.tar.builder import END_MARK
from webdataset.testing import archives, damage

MEMBERS = archives.members_of(archives.samples(6, seed=3))
WAYS = [
    damage.flip_header_bit,
    damage.flip_payload_bit,
    damage.zero_block,
    damage.insert_zeros,
    damage.insert_noise,
    damage.delete_block,
    damage.cut,
]
KINDS = ["ustar", "gnu", "pax"]


def outcome(samples):
    """What samples there are, and which error ends them."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found.extend(samples)
        except WebDatasetError as error:
            return found, type(error)
    return found, None


def by_reader(content):
    """Key and payloads of each sample, by the reader of datasets."""
    for sample in wds.tarfile_samples([{"url": io.BytesIO(content)}]):
        yield sample["__key__"], {name: value for name, value in sample.items() if not name.startswith("__")}


def raw(content):
    """The same, as they stand."""
    for sample in RawSamples(io.BytesIO(content)):
        yield sample.key, sample.payloads()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(WAYS), st.sampled_from(KINDS), st.integers(0, 10_000))
def test_verdict_is_that_of_the_reader(way, kind, seed):
    """Whatever is damaged: the same samples, then the same kind of error, or none."""
    content = way(archives.by_tarfile(MEMBERS, format=kind), seed).data
    samples, error = outcome(raw(content))
    expected, expected_error = outcome(by_reader(content))
    assert samples == expected
    assert error == expected_error


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(WAYS), st.sampled_from(KINDS), st.integers(0, 10_000))
def test_what_is_passed_on_reads_back(way, kind, seed):
    """Members of an archive that is accepted make an archive with the same members, by the standard library, too."""
    content = way(archives.by_tarfile(MEMBERS, format=kind), seed).data
    members, error = outcome(read_members(io.BytesIO(content)))
    again = b"".join(piece for member in members for piece in member.pieces()) + END_MARK
    assert outcome(read_members(io.BytesIO(again))) == (members, None)
    if error is None:
        with tarfile.open(fileobj=io.BytesIO(again)) as archive:
            found = [(each.name, archive.extractfile(each).read()) for each in archive if each.isfile()]
        assert found == [(member.name, member.payload) for member in members]


@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0"])
def test_sparse_members_of_each_version(version):
    """Each form of sparse member is passed on as a file."""
    content = b"\0" * 1000 + b"x" * 600 + b"\0" * 400
    member = archives.pax_sparse(b"a.bin", content, [(1000, 600)], version=version)
    members = list(read_members(io.BytesIO(archives.archive(member))))
    again = b"".join(piece for each in members for piece in each.pieces()) + END_MARK
    assert archives.members_by_tarfile(again) == [("a.bin", content)]
