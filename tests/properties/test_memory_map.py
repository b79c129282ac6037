"""With ``memory_map=True`` datasets give what they give without it: samples, offsets, errors, warnings, decoded values.

Archives of several programs, whole and damaged in many ways, are read from files in chunks of several sizes under many
rules, by bytes and by a map, with the native core and without. ``MAP_FUZZ_CASES`` chooses how many (default 300).
"""

import gzip
import os
import random
from dataclasses import replace

import numpy as np
import pytest

from support.archive_fuzz import Case, damage, draw_rules, list_places, play, write_archive
from support.media_fields import encode_image
from webdataset.codecs.decoder import Decoder

CASES = int(os.environ.get("MAP_FUZZ_CASES", "300"))


@pytest.fixture(autouse=True)
def restore_setting(monkeypatch):
    """Playing a case leaves ``WDS_NATIVE`` set."""
    monkeypatch.setenv("WDS_NATIVE", "1")


def draw_file(seed):
    """A file of a random archive, and rules to read it by."""
    rng = random.Random(seed)
    content = write_archive(rng, large=rng.choice([0.03, 0.3, 0.3, 1]))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        content = damage(rng, content)
    rules, first = {**draw_rules(rng, content), "start": None}, rng.choice([512, 1024, 32 * 1024])
    # which bytes were looked at when a key came again decides about that warning, and chunks decide about these bytes
    rules["split_samples"] = "ignore" if rules.get("split_samples") == "warn" else rules.get("split_samples", "error")
    chunks = first, rng.choice([first, 40 * 1024, 384 * 1024])
    if rng.random() < 0.3:
        rules["start"], rules["rising"] = rng.choice(list_places(content, rules) or [(None, True)])
    return Case(seed, gzip.compress(content, 0) if rng.random() < 0.05 else content, None, rules, chunks)


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("native", [True, False])
def test_random_files(part, native):
    """Whole and damaged files: the same samples at the same offsets, and the same errors and warnings."""
    views = 0
    for number in range(CASES // 3):
        case = draw_file(f"map {part}.{number}")
        mapped = replace(case, rules={**case.rules, "memory_map": True})
        given, warned = play(case, native=native)
        seen, warnings = play(mapped, native=native)
        assert (seen, warnings) == (given, warned), (case.seed, case.rules)
        samples = [dict(each) for each in seen if isinstance(each, list)]
        fields = [value for sample in samples for name, value in sample.items() if name[:2] != "__"]
        assert {type(value) for value in fields} <= {memoryview}, case.seed
        views += len(fields)
    assert views > CASES


@pytest.mark.parametrize("spec", ["rgb", "rgb8", "l", "pil", "torchrgb"])
@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
def test_images(spec, kind):
    """Images decode to the same pixels from a memoryview."""
    if spec.startswith("torch"):
        pytest.importorskip("torch")
    content = encode_image({"jpg": "JPEG"}.get(kind, kind.upper()))
    decode = Decoder(spec).decode
    plain, viewed = (np.asarray(decode({kind: give(content)})[kind]) for give in (bytes, memoryview))
    assert np.array_equal(plain, viewed)
    assert plain.size
