"""Findings: what check says of a shard, with the samples they are about."""

import io
import socket
import tarfile
import time

import pytest

import webdataset as wds
from support.view_sides import make_samples, make_view, write_shard
from webdataset.testing.archives import END, member
from webdataset.viewer.findings import Findings


def wait_for(findings, side="a", number=0):
    """Return the end of a check."""
    while True:
        found = findings.describe(side, number)
        if found["state"] != "running":
            return found
        time.sleep(0.02)


def write_odd_shard(path):
    """A shard with findings of several kinds: fields that do not decode, a key twice, damage."""
    samples = make_samples(12)
    samples[2][1]["json"] = b"{"
    samples[5][1]["png"] = b"\x89PNG no image"
    samples[7][1]["cls"] = b"seven"
    samples[9] = ("key0001", samples[9][1])
    return write_shard(path, samples)


def test_what_stands_after_the_last_sample_is_no_part_of_it(tmp_path):
    """A finding about the end mark names no sample; one about a member does, and its message is a sentence."""
    shard = tmp_path / "x.tar"
    shard.write_bytes(member(b"good.txt", b"a") + member(b"bad.png", b"no picture") + END[:512])
    findings = Findings({"a": make_view("a", [str(shard)])})
    try:
        found = {each["code"]: each for each in wait_for(findings)["findings"]}
        assert found["short-end-mark"]["ordinal"] is None
        assert found["bad-image"]["ordinal"] == 1
        assert found["bad-image"]["message"].endswith("cannot identify image file")
    finally:
        findings.close()


def test_equal_to_check(tmp_path):
    """The findings are check's own; each names the sample that has it."""
    url = write_odd_shard(tmp_path / "x.tar")
    view = make_view("a", [url])
    findings = Findings({"a": view})
    try:
        found = wait_for(findings)
        report = wds.check_shards([url])
        want = [each.to_json() for each in report.findings]
        assert found["state"] == "done"
        assert found["counts"] == report.counts
        assert len(want) >= 4
        for mine, theirs in zip(found["findings"], want, strict=True):
            for name in ("code", "severity", "offset", "member", "key", "field"):
                assert mine[name] == theirs[name]
            if mine["ordinal"] is not None:
                assert view.shard(0).entry(mine["ordinal"]).key == mine["key"]
        ordinals = {each["code"]: each["ordinal"] for each in found["findings"]}
        assert ordinals["bad-json"] == 2
        assert ordinals["bad-image"] == 5
        assert ordinals["bad-number"] == 7
        assert ordinals["repeated-key"] == 9
        assert findings.describe_all("a")["shards"] == [{"shard": 0, "state": "done", "counts": report.counts}]
    finally:
        findings.close()


def test_damage(tmp_path):
    """Behind damage, where the reader gives no sample, a finding has its place and no sample."""
    path = tmp_path / "x.tar"
    write_shard(path, make_samples(30))
    content = bytearray(path.read_bytes())
    with tarfile.open(path) as archive:
        place = archive.getmember("key0015.png").offset
    content[place : place + 100] = b"?" * 100
    path.write_bytes(content)
    findings = Findings({"a": make_view("a", [str(path)])})
    try:
        found = wait_for(findings)
        assert found["counts"] == wds.check_shards([str(path)]).counts
        assert any(each["offset"] is not None for each in found["findings"])
        assert found["unread"]
    finally:
        findings.close()


@pytest.mark.parametrize("url", ["/no/such/shard.tar", "-"])
def test_failures(url):
    """A shard that cannot be read or is read already: said, without its secrets."""
    findings = Findings({"a": make_view("a", [url])})
    found = wait_for(findings)
    assert found["state"] in ("failed", "done")
    assert found["message"] or found["findings"]
    findings.close()


def test_ends_with_the_server(monkeypatch):
    """A check that waits for a source that does not answer ends with the server; its process is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.tar"
        view = make_view("a", [url])
        findings = Findings({"a": view})
        # the shard that the page walks is open, and only the check waits
        shard = view.shard(0)
        monkeypatch.setattr(shard, "open", lambda: None)
        assert findings.describe("a", 0)["state"] == "running"
        while findings._process is None:
            time.sleep(0.01)
        process = findings._process
        findings.close()
        # the thread that follows the check may have been told of the end, and not have noted it yet
        while process.is_alive():
            time.sleep(0.01)
        found = wait_for(findings)
    assert found["state"] == "failed"


def test_large_reports_are_bounded(tmp_path):
    """Of each code a hundred are listed, and all counted."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(300):
            member = tarfile.TarInfo(f"{number}.json")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"{"))
    (tmp_path / "x.tar").write_bytes(out.getvalue())
    findings = Findings({"a": make_view("a", [str(tmp_path / "x.tar")])})
    try:
        found = wait_for(findings)
        assert found["counts"]["bad-json"] == 300
        assert sum(each["code"] == "bad-json" for each in found["findings"]) == 100
    finally:
        findings.close()
