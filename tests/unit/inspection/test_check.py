"""Checks of lists of shards: sources, bounds, digests, limits, and what is never run."""

import hashlib
import importlib.util
import io
import json
import random

import pytest

import webdataset as wds
from support import check_corpus, check_corpus_fields, check_payloads, hostile_pickles, hostile_shards
from webdataset.core.errors import SourceError, UsageError
from webdataset.core.optional_imports import require
from webdataset.inspection import field_checks, shard_check
from webdataset.inspection.finding_kinds import KINDS
from webdataset.inspection.findings import Finding
from webdataset.inspection.key_checks import KnownKeys
from webdataset.testing import archives
from webdataset.testing.sources import RangeServer

assert check_corpus_fields
GOOD = archives.by_hand([("0.txt", b"one"), ("0.json", b"{}"), ("1.txt", b"two"), ("1.json", b"[1]")])
BAD = archives.by_hand([("2.txt", b"one"), ("2.json", b"{")])


def codes(report):
    """The codes that were found."""
    return set(report.counts)


def test_every_scheme(tmp_path):
    """A server, an open file, memory and a command are checked as a file is, and give the same."""
    (tmp_path / "a.tar").write_bytes(BAD)
    wanted = wds.check_shards(str(tmp_path / "a.tar")).counts
    with RangeServer({"/a.tar": BAD}) as server:
        assert wds.check_shards(f"{server.root}/a.tar").counts == wanted
    assert wds.check_shards([io.BytesIO(BAD)]).counts == wanted
    assert wds.check_shards(f"pipe:cat {tmp_path / 'a.tar'}").counts == wanted
    assert wanted == {"bad-json": 1}


@pytest.mark.parametrize("name", check_corpus.names())
def test_stepping_over_payloads_makes_no_difference(name, tmp_path, monkeypatch):
    """Without decoding, payloads of files are stepped over: the findings are those of a stream."""
    monkeypatch.setattr(shard_check, "_SKIP_BYTES", 0)
    monkeypatch.setattr(shard_check, "PIECE_BYTES", 512)
    content = check_corpus.make(name, 11).files[0][1]
    (tmp_path / "a").write_bytes(content)
    stepped = wds.check_shards(str(tmp_path / "a"), decode=False, digests=False).to_json()["shards"][0]
    streamed = wds.check_shards(f"pipe:cat {tmp_path / 'a'}", decode=False, digests=False).to_json()["shards"][0]
    for found in (stepped, streamed):
        found.pop("url")
        for finding in found["findings"]:
            finding.pop("url")
    assert stepped == streamed


def test_unreadable_shards_are_findings(tmp_path):
    """A shard that is not there is told, and the others are checked."""
    (tmp_path / "b.tar").write_bytes(GOOD)
    report = wds.check_shards([str(tmp_path / "a.tar"), str(tmp_path / "b.tar")])
    assert codes(report) == {"unreadable"}
    assert [shard.samples for shard in report.shards] == [0, 2]
    assert report.shards[0].unread == ((0, None),)


@pytest.mark.parametrize("form", sorted(hostile_pickles.executing("x")))
def test_pickles_are_never_run(form, tmp_path):
    """A pickle that would create a file does not, and is called unsafe or broken; torch's need torch to be judged."""
    marker = tmp_path / "marker"
    content = hostile_pickles.executing(str(marker))[form]
    (tmp_path / "a.tar").write_bytes(archives.by_hand([("0.pkl", content)]))
    judged = {"unsafe-pickle", "bad-pickle"}
    if form == "torch storage" and importlib.util.find_spec("torch") is None:
        judged = {"not-checked"}
    assert codes(wds.check_shards(str(tmp_path / "a.tar"))) & judged
    assert not marker.exists()


def test_trust_is_never_more_than_safe(tmp_path, monkeypatch):
    """Where the environment trusts everything, a check still does not run pickles."""
    monkeypatch.setenv("WDS_TRUST", "full")
    marker = tmp_path / "marker"
    content = hostile_pickles.executing(str(marker))["popped"]
    (tmp_path / "a.tar").write_bytes(archives.by_hand([("0.pkl", content)]))
    assert codes(wds.check_shards(str(tmp_path / "a.tar"))) == {"unsafe-pickle"}
    assert not marker.exists()


@pytest.mark.limited(more_bytes=400 << 20, cpu_seconds=60)
def test_hostile_shards_end(tmp_path):
    """Headers that promise what is not there neither take memory nor time, and each is told of."""
    for number, (name, kind, content) in enumerate(hostile_shards.hostile_shards(str(tmp_path / "marker"))):
        if kind == "tar":
            path = tmp_path / f"{number}"
            path.write_bytes(content)
            assert not wds.check_shards(str(path)).ok, name


def test_keys_are_bounded(tmp_path):
    """Beyond the bound keys are forgotten, and the report says so."""
    members = [(f"{key}.txt", b"x") for key in (0, 1, 2, 3, 4, 3, 1)]
    (tmp_path / "a.tar").write_bytes(archives.by_hand(members))
    report = wds.check_shards(str(tmp_path / "a.tar"), most_keys=3)
    assert [(finding.code, finding.key) for finding in report.findings] == [
        ("repeated-key", "1"),
        ("keys-forgotten", None),
    ]


def test_keys_of_many_shards():
    """Whatever the order in which shards come, a known key is found, with the shard that has it."""
    rng = random.Random(1)
    known, where = KnownKeys(100_000), {}
    for shard in range(40):
        hashes = [rng.getrandbits(64) for _ in range(rng.choice((1, 10, 500)))]
        assert known.find(hashes) == []
        known.add(hashes, shard)
        where.update(dict.fromkeys(hashes, shard))
    wanted = rng.sample(sorted(where), 200)
    found = known.find([0, *wanted])
    assert sorted(found) == [(place + 1, where[each]) for place, each in enumerate(wanted)]
    assert len(known) == len(where)


def test_known_keys_are_bounded():
    """No more than the bound are kept."""
    known = KnownKeys(5)
    known.add(list(range(4)), 0)
    assert not known.full
    known.add([10, 11, 12], 1)
    assert known.full
    assert len(known) == 5


def test_many_keys_across_shards(tmp_path):
    """Keys of several shards are compared in batches; each repetition has its place."""
    for shard in range(3):
        members = [(f"{(shard * 5000 + number) % 10_000:06d}.a", b"x") for number in range(5000)]
        (tmp_path / f"{shard}.tar").write_bytes(archives.by_hand(members))
    report = wds.check_shards(str(tmp_path / "{0..2}.tar"), most_findings=10)
    assert report.counts == {"repeated-key-across": 5000}
    assert len(report.shards[2].findings) == 10
    assert report.shards[2].findings[3].offset == 3 * 1024
    assert "0.tar" in report.shards[2].findings[3].message


def test_wids_index(tmp_path):
    """Sizes and digests that a wids index records are compared."""
    (tmp_path / "a.tar").write_bytes(GOOD)
    row = {"url": "a.tar", "nsamples": 2, "filesize": len(GOOD), "md5sum": hashlib.md5(GOOD).hexdigest()}
    index = tmp_path / "index.json"
    for changed, wanted in (({}, set()), ({"filesize": 1}, {"wrong-size"}), ({"md5sum": "0" * 32}, {"wrong-digest"})):
        index.write_text(json.dumps({"wids_version": 1, "shardlist": [row | changed]}))
        assert codes(wds.check_shards(str(tmp_path / "a.tar"), index=index)) == wanted
    index.write_text("[]")
    with pytest.raises(UsageError, match="no wids index"):
        wds.check_shards(str(tmp_path / "a.tar"), index=index)
    with pytest.raises(SourceError):
        wds.check_shards(str(tmp_path / "a.tar"), index=tmp_path / "none.json")


def test_json_beside_a_shard_that_is_no_index(tmp_path):
    """Statistics under the same name, as img2dataset writes them, say nothing about digests."""
    (tmp_path / "a.tar").write_bytes(GOOD)
    (tmp_path / "a.json").write_text('{"count": 2}')
    assert wds.check_shards(str(tmp_path / "a.tar")).ok


def test_a_missing_package_is_told_once(tmp_path, monkeypatch):
    """Fields whose package is missing are not errors: one note an extension."""
    monkeypatch.setattr(
        field_checks, "_decode_sound", lambda _: require("no_such_package", extra="audio", purpose="it")
    )
    monkeypatch.setitem(field_checks._MEDIA, "bad-audio", field_checks._decode_sound)
    members = [(f"{number}.wav", b"RIFF") for number in range(5)]
    for name in "ab":
        (tmp_path / f"{name}.tar").write_bytes(
            archives.by_hand([(f"{name}{member}", body) for member, body in members])
        )
    report = wds.check_shards(str(tmp_path / "{a,b}.tar"))
    assert report.counts == {"not-checked": 1}
    assert report.ok


def test_large_fields_are_not_decoded(tmp_path):
    """A field beyond the limit is told of, and costs no memory."""
    (tmp_path / "a.tar").write_bytes(archives.by_hand([("0.json", b"[" + b"1," * 2000 + b"1]")]))
    check = shard_check.ShardCheck("a", shard_check.CheckRules(most_field_bytes=1000))
    with (tmp_path / "a.tar").open("rb") as stream:
        check.run(stream)
    assert check.report().counts == {"too-large": 1}


def test_fields_across_pieces(tmp_path):
    """A field that is longer than a piece of the stream is decoded whole."""
    body = json.dumps(list(range(400_000))).encode()
    assert len(body) > 2 * shard_check.PIECE_BYTES
    (tmp_path / "a.tar").write_bytes(archives.by_hand([("0.json", body), ("1.json", body[:-1]), ("2.json", b"1")]))
    report = wds.check_shards(str(tmp_path / "a.tar"))
    assert [(finding.code, finding.key) for finding in report.findings] == [("bad-json", "1")]


def test_findings_print_safely():
    """Names with control characters and bytes that are not UTF-8 are escaped on a terminal, and kept in JSON."""
    finding = Finding("odd-name", "its name is odd \x1b[2J", "s3://key:secret@bucket/a.tar", 3, "a\udce9\n.txt")
    assert str(finding).isascii()
    assert "secret" not in str(finding)
    assert finding.to_json()["member"] == "a\udce9\n.txt"
    json.dumps(finding.to_json())


def test_wrong_arguments(tmp_path):
    """What cannot mean anything is refused before anything is read."""
    with pytest.raises(UsageError, match="profile 'x' is not one of"):
        wds.check_shards(str(tmp_path / "a.tar"), profiles=["x"])
    with pytest.raises(UsageError, match="profile 'xyz' is not one of"):
        wds.check_shards(str(tmp_path / "a.tar"), profiles="xyz")
    with pytest.raises(UsageError, match="most_findings"):
        wds.check_shards(str(tmp_path / "a.tar"), most_findings=0)
    with pytest.raises(UsageError, match=r"hashes=\('md6',\)"):
        wds.index_shard(str(tmp_path / "a.tar"), hashes="md6")


def test_every_format_is_decoded(tmp_path):
    """Of each format a good field is no finding, and there are formats of all kinds."""
    extensions = (
        "jpg png webp json jsonl yaml txt cls npy npz msgpack cbor pkl wav flac mp4 safetensors json.gz".split()
    )
    rng = random.Random(4)
    members = [(f"0.{extension}", check_payloads.good(extension, rng)) for extension in extensions]
    (tmp_path / "a.tar").write_bytes(archives.by_hand(members))
    assert wds.check_shards(str(tmp_path / "a.tar")).counts == {}
    found = {check.code for extension in extensions if (check := field_checks.find_field_check(extension))}
    assert found == {code for code in KINDS if code.startswith("bad-")} - {
        "bad-header", "bad-extension", "bad-compression", "bad-name", "bad-compressed-field",
    }  # fmt: skip


def test_fields_without_bytes(tmp_path):
    """An empty field whose decoder refuses it is an error as other bad fields are; one that decodes is a note."""
    place = tmp_path / "empty.tar"
    place.write_bytes(archives.by_hand([(f"a.{name}", b"") for name in ("json", "cls", "npy", "pyd", "txt", "bin")]))
    report = wds.check_shards(place)
    assert report.counts == {"bad-json": 1, "bad-number": 1, "bad-array": 1, "bad-pickle": 1, "empty-member": 2}
    assert {each.message for each in report.findings if each.code == "bad-json"} == {"the json field has no bytes"}
    assert wds.check_shards(place, decode=False).counts == {"empty-member": 6}
