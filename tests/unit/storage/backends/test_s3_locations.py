"""What S3 urls mean."""

import pytest

from webdataset.storage.backends.s3_client import parse_url


@pytest.mark.parametrize("key", ["k", "k\n", "\n", "a\nb", "k?", "k?versionId=a b"])
def test_keys_are_taken_as_they_stand(key):
    """Also with line breaks and question marks in them."""
    place = parse_url(f"s3://bucket/{key}")
    assert (place.bucket, place.key, place.version) == ("bucket", key, None)
