"""What is retried, how often, and after which pauses."""

from webdataset.storage import retries


def test_retry_after():
    """``Retry-After`` is seconds or a date of the server's clock; anything else is no wish."""
    assert retries.parse_retry_after("7") == 7
    assert retries.parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retries.parse_retry_after("Wed, 21 Oct 2115 07:28:00 GMT") > 1e9
    assert (
        retries.parse_retry_after("Wed, 21 Oct 2015 07:28:30 GMT", "Wed, 21 Oct 2015 07:28:10 GMT") == 20
    )  # their clock
    assert retries.parse_retry_after("Wed, 21 Oct 2115 07:28:30", "Wed, 21 Oct 2115 07:28:10 GMT") == 20
    assert retries.parse_retry_after("Wed, 21 Oct 2015 07:28:30 GMT", "no date") == 0
    assert [retries.parse_retry_after(text) for text in (None, "", "soon", "-1", "²")] == [None] * 5
