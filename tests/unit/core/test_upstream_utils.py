"""Small things about iterables."""

from itertools import islice

import pytest

from webdataset.core.upstream_utils import PipelineStage, guess_batchsize, identity, is_iterable, lookup_sym, repeatedly


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"nepochs": 2}, [1, 2, 3, 1, 2, 3]),
        ({"nbatches": 5}, [1, 2, 3, 1, 2]),
        ({"nepochs": 1, "nbatches": 9}, [1, 2, 3]),
        ({}, [1, 2, 3, 1, 2, 3, 1, 2, 3]),
        ({"nepochs": 0}, []),
        ({"nbatches": 0}, []),
        ({"nsamples": 0}, []),
    ],
)
def test_repeatedly(limits, expected):
    """A source is iterated again until a limit."""
    assert list(islice(repeatedly([1, 2, 3], **limits), 9)) == expected


def test_repeatedly_counts_samples():
    """Nsamples counts by the first field of each batch; the batch that reaches it is the last."""
    batches = [[[1, 2]], [[3, 4]]]
    assert list(repeatedly(batches, nsamples=5)) == [*batches, batches[0]]
    assert list(repeatedly(batches, nsamples=4)) == batches
    assert list(repeatedly([{"a": 1}] * 2, nsamples=3, batchsize=lambda batch: 1)) == [{"a": 1}] * 3


def test_repeatedly_ends():
    """A source that is used up or empty ends the repetition."""
    assert list(repeatedly(iter([1, 2]), nepochs=3)) == [1, 2]
    assert list(repeatedly([])) == []


def test_batch_sizes():
    """The first field tells the size of a batch."""
    assert guess_batchsize(([1, 2], [3])) == 2
    assert guess_batchsize({"a": [1, 2, 3]}) == 3


def test_iterables():
    """Texts and bytes are not iterables here."""
    assert [is_iterable(x) for x in ([1], {}, iter([]), "a", b"a", 1, None)] == [True] * 3 + [False] * 4
    assert identity(3) == 3


def test_symbols():
    """The first module that has the name gives it."""
    import os.path

    assert lookup_sym("join", ["string", "os.path"]) is os.path.join
    assert lookup_sym("nothing", ["os"]) is None
    with pytest.raises(ModuleNotFoundError):
        lookup_sym("x", ["no_such_module"])


def test_stages():
    """Run calls invoke, and one of them must be defined."""

    class Doubled(PipelineStage):
        def invoke(self, source):
            return (2 * x for x in source)

    assert list(Doubled().run([1, 2])) == [2, 4]
    with pytest.raises(NotImplementedError, match="PipelineStage"):
        PipelineStage().run([])
