"""The stages that join documents with their siblings keep the contract of stages, after every output."""

import random
from typing import Any

import pytest

from webdataset import filters
from webdataset.core.error_handlers import ignore_and_continue
from webdataset.samples.grouping import base_plus_ext
from webdataset.testing import documents
from webdataset.testing.documents import Picture, Spec
from webdataset.testing.stages import check_stage


def specs(count, images=3):
    """Documents of few texts and images."""
    rng = random.Random(count)
    for number in range(count):
        pictures = [
            Picture(f"im{k}.png", rng.randrange(4), f"{number}/{k}".encode()) for k in range(rng.randrange(images + 1))
        ]
        yield Spec(f"{number:03d}", [f"t{k}" for k in range(4)], pictures)


def samples(members, url="shard"):
    """What the reader makes of members."""
    made = []
    for name, payload in members:
        key, field = base_plus_ext(name)
        if not made or made[-1]["__key__"] != key:
            made.append({"__key__": key, "__url__": url})
        made[-1][field] = payload
    return made


def sorted_by_name(count):
    """Images before their JSON, as ``tar --sort=name`` has them."""
    return samples(member for spec in specs(count) for member in sorted(documents.siblings(spec)))


def json_first(count):
    """The JSON before its images."""
    return samples(member for spec in specs(count) for member in documents.siblings(spec))


def stirred(count, *, whole):
    """Members of a document, or of a whole shard, in any order."""
    rng = random.Random(count)
    members = [documents.siblings(spec) for spec in specs(count)]
    for group in members:
        rng.shuffle(group)
    flat = [member for group in members for member in group]
    if whole:
        rng.shuffle(flat)
    return samples(flat)


def two_shards():
    """The same keys in two shards, the first cut off in the middle of a document."""
    return [*samples([m for spec in specs(3) for m in documents.siblings(spec)][:-1], "one"), *json_first(3)]


def faulty():
    """Documents, images that no document names, a pair, JSON that is no document, and JSON that is none."""
    plain = samples([("s-1.jpg", b"s"), ("s-2.jpg", b"t"), ("pair.jpg", b"p"), ("pair.cls", b"1"), ("q.json", b"{}")])
    broken = samples([("r.json", b"{"), ("r-1.jpg", b"x")])
    return [*json_first(3), *plain, *sorted_by_name(2), *broken, *plain[:1]]


STAGES: dict[str, Any] = {
    "json first": (filters.interleaved, json_first(6)),
    "sorted by name": (filters.interleaved, sorted_by_name(6)),
    "any order within documents": (filters.interleaved, stirred(6, whole=False)),
    "any order in the shard": (lambda: filters.interleaved(adjacent=False), stirred(6, whole=True)),
    "little lookahead": (
        lambda: filters.interleaved(adjacent=False, lookahead=3, others="pass", missing_image="drop_image"),
        stirred(6, whole=True),
    ),
    "two shards": (lambda: filters.interleaved(missing_image="drop_image"), two_shards()),
    "policies": (
        lambda: filters.interleaved(missing_image="drop_document", min_images=2, max_images=2, others="drop"),
        two_shards(),
    ),
    "others pass": (lambda: filters.interleaved(others="pass", handler=ignore_and_continue), faulty()),
    "others are errors": (lambda: filters.interleaved(handler=ignore_and_continue), faulty()),
    "sibling fields": (filters.sibling_fields, json_first(5)),
    "sibling fields sorted by name": (filters.sibling_fields, sorted_by_name(5)),
    "sibling fields unnamed": (lambda: filters.sibling_fields(named=False), stirred(5, whole=False)),
    "sibling fields faulty": (lambda: filters.sibling_fields(handler=ignore_and_continue), faulty()),
    "to_dict": (lambda: filters.to_dict("json jpg"), samples(m for s in specs(5) for m in documents.fields(s))),
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_keep_the_contract(name):
    """Repr, pickle, early close, and exact continuation after every output, alone and before a shuffle."""
    make, source = STAGES[name]
    check_stage(make(), source)


def test_the_sources_of_these_tests_hold_what_they_should():
    """The cases above give documents, and the faulty one everything else too."""
    assert len(list(filters.interleaved()(sorted_by_name(6)))) == 6
    kinds = {type(sample).__name__ for sample in STAGES["others pass"][0]()(faulty())}
    assert kinds == {"Document", "dict"}
