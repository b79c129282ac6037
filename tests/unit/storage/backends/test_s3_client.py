"""Records of botocore are kept, without keys and tokens."""

import logging

import pytest

from webdataset.core.errors import NotFound
from webdataset.storage.backends import s3_client as s3_logs
from webdataset.storage.backends import s3_errors
from webdataset.storage.s3_profile import Profile


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


def test_an_answer_without_a_status():
    """Errors that no answer came with, or a strange one, have none."""
    assert s3_errors.response_status(ValueError("no answer")) == 0
    for response, status in (
        ({}, 0),
        ({"ResponseMetadata": {}}, 0),
        ({"ResponseMetadata": {"HTTPStatusCode": 404}}, 404),
    ):
        error = ValueError("an answer")
        error.response = response
        assert s3_errors.response_status(error) == status


def test_a_refused_request_is_translated(monkeypatch):
    """What botocore raises comes out as an error of ours, that names the url; errors of others as they are."""
    botocore = pytest.importorskip("botocore.exceptions")
    facts = {"Error": {"Code": "NoSuchBucket", "Message": "none"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    raised = [botocore.ClientError(facts, "ListObjectsV2"), ArithmeticError("not the service")]

    class Client:
        def list_objects_v2(self, **_arguments):
            raise raised.pop(0)

    monkeypatch.setattr(s3_logs, "client_for", lambda *_: Client())
    client = s3_logs.S3Client(Profile(""), "s3://bucket/", attempts=1)
    with pytest.raises(NotFound) as caught:
        client.call("list_objects_v2", Bucket="bucket")
    assert caught.value.url == "s3://bucket/"
    with pytest.raises(ArithmeticError, match="not the service"):
        client.call("list_objects_v2", Bucket="bucket")


def test_an_object_that_changed_says_where_it_was_read():
    """At its start where nothing was read."""
    error = ValueError("an answer")
    error.response = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"HTTPStatusCode": 412}}
    assert "at byte 0)" in str(s3_errors.translate_error(error, "s3://bucket/key"))
    assert "at byte 700)" in str(s3_errors.translate_error(error, "s3://bucket/key", offset=700))
