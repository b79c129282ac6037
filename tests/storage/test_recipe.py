"""The recipe for two private accounts, on a real service with two pairs of keys."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import s3_server
from webdataset.testing import archives

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "private_s3.py"


@pytest.mark.parametrize("swapped", [False, True])
def test_each_bucket_is_reached_with_its_own_keys(client, service, tmp_path, swapped):
    """The reader's keys cannot write, so the copy works only with both; with the keys swapped it is refused."""
    body = archives.by_hand([("a.txt", b"one"), ("a.json", b"{}"), ("b.txt", b"two")])
    client.put_object(Bucket="shards", Key="recipe/in.tar", Body=body)
    keys = [s3_server.READER, s3_server.WRITER]
    source, target = reversed(keys) if swapped else keys
    environment = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    environment |= {
        "SOURCE_KEY": source[0],
        "SOURCE_SECRET": source[1],
        "TARGET_KEY": target[0],
        "TARGET_SECRET": target[1],
    }
    goal = f"s3://other/recipe-{swapped}-%03d.tar"
    words = [
        "s3://shards/recipe/in.tar",
        goal,
        "--source-endpoint",
        service.endpoint,
        "--target-endpoint",
        service.endpoint,
    ]
    command = [sys.executable, str(RECIPE), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    for secret in (source[1], target[1]):
        assert secret not in done.stdout + done.stderr
    if swapped:
        assert done.returncode != 0
        assert "AccessDenied" in done.stderr or "403" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert "2 samples copied" in done.stdout
    copied = client.get_object(Bucket="other", Key="recipe-False-000.tar")["Body"].read()
    assert b"one" in copied
    assert b"{}" not in copied
