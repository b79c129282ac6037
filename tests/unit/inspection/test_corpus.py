"""Every kind of damage of the corpus is found where it is, nothing else is, and what cannot be read is told."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import check_corpus, check_corpus_fields
from webdataset.inspection import shard_check
from webdataset.inspection.check import check_shards
from webdataset.inspection.finding_kinds import KINDS
from webdataset.testing import archives, damage

SEEDS = range(3)
NAMES = check_corpus.names()


def checked(variant, folder, **options):
    """The report on a variant's shards."""
    for name, content in variant.files:
        (folder / name).write_bytes(content)
    shards = [str(folder / name) for name, _ in variant.files if ".tar" in name]
    return check_shards(shards, **options)


def lacking(variant, report):
    """The truths that were not found."""
    return [
        truth
        for truth in variant.truths
        if not any(
            finding.code == truth.code
            and (truth.offset is None or finding.offset == truth.offset)
            and (truth.key is None or finding.key == truth.key)
            for finding in report.findings
        )
    ]


def test_it_is_large():
    """More than two hundred variants, and every code that a check of shards can give is among the truths."""
    made = [check_corpus.make(name, seed) for name in NAMES for seed in SEEDS]
    told = {truth.code for variant in made for truth in variant.truths}
    elsewhere = {"unreadable", "keys-forgotten", "not-checked"} | {
        code for code in KINDS if code.startswith(("refused-", "differs-"))
    }
    assert len(made) >= 200
    assert told == set(KINDS) - elsewhere


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_found(name, seed, tmp_path):
    """The truths are found, with their places; other codes only where they follow from the damage."""
    variant = check_corpus.make(name, seed)
    report = checked(variant, tmp_path)
    assert lacking(variant, report) == []
    expected = {truth.code for truth in variant.truths} | variant.also
    assert set(report.counts) <= expected, [str(finding) for finding in report.findings]
    if variant.unread:
        assert any(shard.unread for shard in report.shards)


# how much comes out of a damaged compressed stream depends on how it is given
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(("gzip", "xz"))])
def test_pieces_make_no_difference(name, tmp_path, monkeypatch):
    """The findings are the same, however the bytes come."""
    variant = check_corpus.make(name, 7)
    expected = checked(variant, tmp_path).to_json()
    for size in (512, 777, 4096):
        monkeypatch.setattr(shard_check, "PIECE_BYTES", size)
        assert checked(variant, tmp_path).to_json() == expected


ARCHIVES = {seed: archives.of_samples(archives.samples(9, seed=seed)) for seed in range(8)}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(ARCHIVES)),
    st.lists(st.tuples(st.sampled_from(sorted(damage.OPERATORS)), st.integers(0, 10**6)), min_size=1, max_size=1),
)
def test_damage_that_can_be_seen_is_seen(seed, blows):
    """Wherever the format shows that the bytes are no whole archive, the check has an error; it never fails itself."""
    damaged = ARCHIVES[seed]
    for operator, place in blows:
        damaged, description = damage.OPERATORS[operator](damaged, place)
    report = check_shards([io.BytesIO(damaged)], decode=False)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert damage.flaw(damaged) is None or errors, description
    (shard,) = report.shards
    assert all(0 <= start < (stop or start + 1) <= len(damaged) for start, stop in shard.unread)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3000), st.booleans())
def test_any_bytes_are_checked(content, with_header):
    """Whatever the bytes, there is a report, and no error of the check's own."""
    start = archives.member(b"0.txt", b"text") if with_header else b""
    report = check_shards([io.BytesIO(start + content)])
    assert len(report.shards) == 1


assert check_corpus_fields  # it registers its kinds
