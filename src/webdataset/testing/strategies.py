"""Hypothesis strategies: member names, samples, archives and damage.

Needs the package ``hypothesis``; nothing else of this library imports this module.
"""

from hypothesis import strategies as st

from webdataset.testing.archives import Fields
from webdataset.testing.damage import OPERATORS, Damaged

_LETTERS = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="/.")
_EXTENSIONS = ("cls", "txt", "json", "jpg", "seg.png", "tar.gz", "0.jpg", "éà")


def words(*, longest: int = 12) -> st.SearchStrategy[str]:
    """Return names without dots and slashes, in any script.

    Args:
        longest: most characters.
    """
    return st.text(_LETTERS, min_size=1, max_size=longest)


def keys() -> st.SearchStrategy[str]:
    """Return sample keys: folders (which may have dots) and a name without dots; none that a reader would skip."""
    folders = st.lists(st.tuples(words(), st.sampled_from(("", ".d"))).map("".join), max_size=2)
    joined = st.tuples(folders, words()).map(lambda parts: "/".join([*parts[0], parts[1]]))
    return joined.filter(lambda key: not key.startswith("__"))


def fields(*, largest: int = 1100) -> st.SearchStrategy[Fields]:
    """Return the fields of one sample, by extension in lower case.

    Args:
        largest: most bytes of a payload.
    """
    payloads = st.one_of(st.binary(max_size=20), st.binary(min_size=511, max_size=513), st.binary(max_size=largest))
    return st.dictionaries(st.sampled_from(_EXTENSIONS), payloads, min_size=1, max_size=4)


def samples(*, most: int = 6) -> st.SearchStrategy[list[tuple[str, Fields]]]:
    """Return the samples of a shard: (key, fields), no key twice.

    Args:
        most: most samples.
    """
    return st.lists(st.tuples(keys(), fields()), max_size=most, unique_by=lambda sample: sample[0])


def member_names() -> st.SearchStrategy[str]:
    """Return names of members as they come: with and without extension, hidden, with folders, dots and odd letters."""
    part = st.text(st.one_of(_LETTERS, st.sampled_from("..__-")), min_size=1, max_size=8)
    return st.lists(part, min_size=1, max_size=3).map("/".join)


@st.composite
def damaged(draw: st.DrawFn, archive: bytes) -> Damaged:
    """Return an archive damaged by any operator.

    Args:
        draw: given by Hypothesis.
        archive: a whole archive with at least one payload.
    """
    operator = OPERATORS[draw(st.sampled_from(sorted(OPERATORS)))]
    return operator(archive, draw(st.integers(0, 2**32 - 1)))
