"""What is in this bucket? Answered by the executable alone, in three commands that its help shows."""

import pytest

from support.command import json_lines, run_wds
from support.command_help import is_shown
from webdataset.testing import archives

pytestmark = pytest.mark.usefixtures("environment")


def test_what_is_in_this_bucket(client):
    """Counts, fields and sizes of all shards below a prefix; the samples; the first one's fields."""
    for shard in range(3):
        members = [(f"{shard}-{number}.{field}", b"{}") for number in range(4) for field in ("json", "txt")]
        for name, body in ((f"train-{shard:06}.tar", archives.by_hand(members)), ("notes.txt", b"x")):
            client.put_object(Bucket="shards", Key=f"asked/{name}", Body=body)
    calls = (
        ["info", "s3://shards/asked/train-*.tar"],
        ["ls", "--json", "s3://shards/asked/"],
        ["head", "s3://shards/asked/train-000001.tar"],
    )
    assert all(map(is_shown, calls))
    told, listed, head = (run_wds(*call) for call in calls)
    assert b"12" in told.stdout
    assert b"json" in told.stdout
    assert [row["key"] for row in json_lines(listed)] == [
        f"{shard}-{number}" for shard in range(3) for number in range(4)
    ]
    assert b"1-0" in head.stdout
