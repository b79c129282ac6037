"""Jobs that read and write a store: receipts with ETags, replaced inputs and outputs, kills, broken connections."""

import json
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from support import mapped
from support.mapped import make_shards
from support.proxy import Fault, planned
from webdataset.cluster import shard_tasks
from webdataset.cluster.map_shards import plan_job
from webdataset.cluster.process_engine import ProcessEngine
from webdataset.cluster.shard_tasks import run_task
from webdataset.core.errors import SourceError
from webdataset.storage.listing import list_urls

pytestmark = pytest.mark.usefixtures("environment")
COUNTS = [9, 25, 0, 14]
RULES: Any = {"on_sample_error": "quarantine"}


@pytest.fixture
def stored(client, tmp_path, request):
    """Shards in a bucket, what a local job makes of them, and where outputs go."""
    place = f"map-{request.node.name.replace('[', '-').replace(']', '')}-{os.getpid()}"
    for name in make_shards(tmp_path / "in", COUNTS):
        client.put_object(Bucket="shards", Key=f"{place}/in/{Path(name).name}", Body=Path(name).read_bytes())
    wds.map_shards(mapped.vary_slowly, f"{tmp_path}/in/*.tar", f"{tmp_path}/out/", **RULES)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.tar")}
    return f"s3://shards/{place}", expected


def read_folder(client, url):
    """Return the outputs of a folder, read not by us; each has a receipt that describes it."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found = {}
    for each in list_urls(url):
        key = each.removeprefix(f"s3://{bucket}/")
        if key.endswith(".tar"):
            found[key.rpartition("/")[2]] = client.get_object(Bucket=bucket, Key=key)["Body"].read()
            receipt = json.loads(client.get_object(Bucket=bucket, Key=f"{key}.receipt.json")["Body"].read())
            assert receipt["output"]["etag"] == client.head_object(Bucket=bucket, Key=key)["ETag"]
    assert prefix
    return found


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_store_on_both_sides(stored, client, engine):
    """The outputs are those of local files; a second run makes nothing; what was replaced is made again."""
    place, expected = stored
    job = lambda: wds.map_shards(  # noqa: E731
        mapped.vary_slowly, f"{place}/in/*.tar", f"{place}/out/", engine=engine, jobs=2, **RULES
    )
    assert len(job().done) == 4
    assert read_folder(client, f"{place}/out/") == expected
    assert len(job().skipped) == 4
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    content = client.get_object(Bucket=bucket, Key=f"{prefix}/in/001.tar")["Body"].read()
    client.put_object(Bucket=bucket, Key=f"{prefix}/in/001.tar", Body=content.replace(b"2222", b"3333"))
    client.put_object(
        Bucket=bucket, Key=f"{prefix}/out/003.tar", Body=expected["003.tar"].replace(b"second", b"SECOND")
    )
    client.delete_object(Bucket=bucket, Key=f"{prefix}/out/000.tar")
    assert job().reasons == {"input": 1, "output changed": 1, "output missing": 1}
    client.put_object(Bucket=bucket, Key=f"{prefix}/in/001.tar", Body=content)
    assert job().reasons == {"input": 1}
    assert read_folder(client, f"{place}/out/") == expected


def test_workers_are_killed_while_they_upload(stored, client):
    """SIGKILL of workers at random: the outputs are those of an undisturbed job."""
    place, expected = stored
    engine, rng, over, kills = ProcessEngine(2), random.Random(5), threading.Event(), []

    def kill():
        while not over.wait(rng.uniform(0.2, 0.9)) and len(kills) < 4:
            living = [process.pid for process in list(engine._processes) if process.popen.poll() is None]
            if living:
                kills.append(rng.choice(living))
                os.kill(kills[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        wds.map_shards(mapped.vary_slowly, f"{place}/in/*.tar", f"{place}/out/", engine=engine, retries=10, **RULES)
    finally:
        over.set()
        killer.join()
    assert read_folder(client, f"{place}/out/") == expected


def test_an_input_that_is_replaced_after_planning(stored, client):
    """The ETag of the plan is compared with that of the object that was opened."""
    place, _ = stored
    job = plan_job(mapped.keep, f"{place}/in/*.tar", f"{place}/out/")
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    content = client.get_object(Bucket=bucket, Key=f"{prefix}/in/001.tar")["Body"].read()
    client.put_object(Bucket=bucket, Key=f"{prefix}/in/001.tar", Body=content.replace(b"2222", b"3333"))
    result = run_task(job, 1)
    assert (result.state, result.again) == ("failed", False)
    assert "replaced after the job was planned" in result.reason
    assert run_task(job, 0).state == "done"


def test_tasks_that_overtake_each_other_never_leave_a_wrong_receipt(stored, client, monkeypatch):
    """Two tasks of a function that draws, in any order of their writes: a receipt that holds describes its output."""
    place, _ = stored
    job = plan_job(mapped.draw_unseeded, [f"{place}/in/000.tar"], f"{place}/out/{{name}}")
    real, first = shard_tasks.write_receipt, []

    def write_late(output, receipt):
        # the other task writes output and receipt between this output and this receipt
        if not first:
            first.append(receipt)
            assert run_task(job, 0).state == "done"
        real(output, receipt)

    with monkeypatch.context() as patch:
        patch.setattr(shard_tasks, "write_receipt", write_late)
        assert run_task(job, 0).state == "done"
    # the receipt of the slow task does not describe the output of the fast one
    assert run_task(job, 0).reason == "output changed"
    assert run_task(job, 0).state == "skipped"
    assert read_folder(client, f"{place}/out/")


def test_a_task_does_not_describe_the_output_of_another(stored, monkeypatch):
    """A task that finds the other's output in the place of its own says so, and leaves the other's receipt."""
    place, _ = stored
    job = plan_job(mapped.draw_unseeded, [f"{place}/in/000.tar"], f"{place}/out/{{name}}")
    real, first = shard_tasks.identify_object, []

    def look_late(url):
        # the other task writes output and receipt between this output and the look at it
        if not first:
            first.append(url)
            assert run_task(job, 0).state == "done"
        return real(url)

    with monkeypatch.context() as patch:
        patch.setattr(shard_tasks, "identify_object", look_late)
        result = run_task(job, 0)
    assert result.state == "failed"
    assert "two tasks made different outputs" in result.reason
    assert run_task(job, 0).state == "skipped"


@pytest.mark.usefixtures("waits")
def test_broken_connections_do_not_show(stored, client, proxied):
    """Answers that break off and errors of the service: the same outputs."""
    place, expected = stored
    kinds = [None, Fault("reset", 3000), None, None, Fault("busy"), None, None, Fault("cut", 500)] * 6
    proxied(planned(kinds, methods=("GET", "PUT")))
    wds.map_shards(mapped.vary_slowly, f"{place}/in/*.tar", f"{place}/out/", **RULES)
    assert read_folder(client, f"{place}/out/") == expected


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_wrong_credentials(stored, client, monkeypatch, engine):
    """A job fails before it begins, and an output that may not be written at its first attempt; then all are made."""
    place, expected = stored
    job = lambda target, **more: wds.map_shards(  # noqa: E731
        mapped.vary_slowly, f"{place}/in/*.tar", target, engine=engine, jobs=2, **RULES, **more
    )
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
        with pytest.raises(SourceError, match="403 SignatureDoesNotMatch.*the secret key is wrong") as told:
            job(f"{place}/out/")
        assert "a-wrong-secret" not in str(told.value)
    assert not [each for each in list_urls(f"{place}/") if "/out/" in each]
    assert len(job(f"{place}/out/").done) == 4
    assert read_folder(client, f"{place}/out/") == expected


@pytest.mark.usefixtures("waits")
def test_a_place_that_may_not_be_written(stored, client, proxied):
    """403 for all that a job writes ends it with the service's own words; the next run makes what is missing."""
    place, expected = stored
    # the manifest may be written
    proxied(planned([None, *[Fault("denied")] * 1000], methods=("PUT", "POST")))
    with pytest.raises(SourceError, match="403 AuthenticationFailed"):
        wds.map_shards(mapped.vary_slowly, f"{place}/in/*.tar", f"{place}/out/", **RULES)
    assert not [each for each in list_urls(f"{place}/out/") if each.endswith(".tar")]
    proxied(planned([]))
    wds.map_shards(mapped.vary_slowly, f"{place}/in/*.tar", f"{place}/out/", **RULES)
    assert read_folder(client, f"{place}/out/") == expected
