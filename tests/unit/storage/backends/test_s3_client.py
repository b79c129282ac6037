"""Records of botocore are kept, without keys and tokens."""

import logging

import pytest

from webdataset.storage.backends import s3_client as s3_logs


@pytest.mark.parametrize(
    "message",
    [
        "CanonicalRequest:\nGET\n/bucket\nhost:h\nx-amz-security-token:canary/+=\nx-amz-date:today\n",
        "headers={'X-Amz-Security-Token': b'canary', 'Authorization': b'AWS4-HMAC Credential=canary/x', 'A': today}",
        "Response body:\nb'<SecretAccessKey>canary</SecretAccessKey><SessionToken>canary</SessionToken><a>today</a>'",
        'Response body:\nb\'{"secretAccessKey": "canary", "sessionToken":"canary", "a": "today"}\'',
    ],
)
@pytest.mark.parametrize("name", ["auth", "endpoint", "parsers"])
def test_records_are_masked(name, message, caplog):
    """What is secret in headers and answers is replaced; the rest stays, and so do records of others."""
    s3_logs.mask_botocore_logs()
    s3_logs.mask_botocore_logs()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger(f"botocore.{name}").debug("%s", message)
        logging.getLogger("else").debug("%s", "x-amz-security-token:of another")
    shown, other = (record.getMessage() for record in caplog.records)
    assert "canary" not in shown
    assert "today" in shown
    assert "***" in shown
    assert other.endswith("of another")
