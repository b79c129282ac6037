"""Every kind of damage of the corpus is found where it is, nothing else is, and what cannot be read is told."""

import pytest

from support import check_corpus, check_corpus_fields
from webdataset.inspection import shard_check
from webdataset.inspection.check import check_shards
from webdataset.inspection.finding_kinds import KINDS

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


@pytest.mark.parametrize("name", NAMES)
def test_pieces_make_no_difference(name, tmp_path, monkeypatch):
    """The findings are the same, however the bytes come."""
    variant = check_corpus.make(name, 7)
    if variant.files[0][0].endswith(("gz", "xz")):
        assert variant.truths  # how much of a damaged stream comes out depends on how it is given
        return
    expected = checked(variant, tmp_path).to_json()
    for size in (512, 777, 4096):
        monkeypatch.setattr(shard_check, "PIECE_BYTES", size)
        assert checked(variant, tmp_path).to_json() == expected


assert check_corpus_fields  # it registers its kinds
