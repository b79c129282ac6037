"""The strategies give what they promise."""

from hypothesis import given, settings

from webdataset.testing import archives, strategies

ARCHIVE = archives.by_hand(archives.members_of(archives.samples(3)))


@settings(deadline=None)
@given(strategies.samples())
def test_samples_can_be_archived_by_tarfile(samples):
    """Any samples make an archive that another party reads back."""
    members = archives.members_of(samples)
    assert archives.members_by_tarfile(archives.by_tarfile(members, format="pax")) == members


@settings(deadline=None)
@given(strategies.samples())
def test_keys_are_unique_and_have_no_dot_in_their_last_part(samples):
    """A key is what stands before the first dot of the last part."""
    keys = [key for key, _ in samples]
    assert len(set(keys)) == len(keys)
    assert all("." not in key.rpartition("/")[2] and not key.startswith("__") for key in keys)


@settings(deadline=None)
@given(strategies.damaged(ARCHIVE))
def test_damaged_differs(damaged):
    """Damage changes the bytes and says how."""
    assert damaged.data != ARCHIVE
    assert damaged.description


@settings(deadline=None)
@given(strategies.member_names())
def test_member_names_are_names(name):
    """Names are not empty, and hold no zero byte."""
    assert name
    assert "\0" not in name
