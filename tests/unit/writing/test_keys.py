"""Keys and fields: what reads back, judged by the rules of reading themselves."""

import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webdataset.core.errors import SampleError, UsageError
from webdataset.samples.grouping import base_plus_ext, is_meta
from webdataset.writing.tar_writer import KeyRules, encoding_plan


@given(st.text("ab./_", min_size=1, max_size=8).filter(lambda key: not key.endswith("/")))
@example("__m__/a")
@example(".hidden")
@example("dir/.hidden")
def test_a_key_passes_exactly_if_it_reads_back(key):
    """The strict policy refuses a key that reads back as another one, as none, or that leaves the folder."""
    name = f"{key}.x"
    reads_back = base_plus_ext(name) == (key, "x") and not is_meta(name)
    reads_back = reads_back and key[0] != "/" and ".." not in key.split("/")
    try:
        KeyRules("error").check(key)
    except SampleError as error:
        refused = error.key
    else:
        refused = None
    assert refused == (None if reads_back else key)


def test_policies():
    """Warn warns once, error raises, ignore does neither; others are refused."""
    rules = KeyRules()
    with pytest.warns(UserWarning, match="further keys are not reported"):
        rules.check("a.b")
    rules.check("a.c")
    KeyRules("ignore").check("a.b")
    with pytest.raises(SampleError, match="reads back as 'a'"):
        KeyRules("error").check("a.b")
    with pytest.raises(UsageError, match="'warn', 'error', 'ignore'"):
        KeyRules("strict")


@pytest.mark.parametrize("key", ["", "a/", "a\0", 5, None])
def test_no_policy_lets_impossible_keys_pass(key):
    """What cannot be written is an error under every policy."""
    for policy in ("warn", "error", "ignore"):
        with pytest.raises(SampleError, match="__key__"):
            KeyRules(policy).check(key)


@pytest.mark.parametrize("key", ["/abs", "../a", "a/../b", ".."])
def test_keys_that_leave_the_folder(key):
    """They are warned of, or refused, as the policy says."""
    with pytest.warns(UserWarning, match=r"further keys|the folder"):
        KeyRules().check(key)
    with pytest.raises(SampleError, match="out"):
        KeyRules("error").check(key)
    KeyRules("ignore").check(key)


@pytest.mark.parametrize("policy", ["warn", "error", "ignore"])
def test_keys_that_every_reader_skips(policy):
    """Metadata would be lost: an error under every policy, naming the key; what only looks similar passes."""
    with pytest.raises(SampleError, match="metadata") as caught:
        KeyRules(policy).check("__a__/b")
    assert caught.value.key == "__a__/b"
    KeyRules(policy).check("__a__")


def test_ordinary_keys_pass_silently():
    """A key without flaws gives no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KeyRules().check("dir.d/key")


def test_plans():
    """Fields are sorted, metadata left out or kept, the key always left out."""
    fields = ("txt", "__key__", "_m", "JPG", "__url__")
    assert encoding_plan(fields, keep_meta=False) == (("JPG", ".JPG"), ("txt", ".txt"))
    assert [field for field, _ in encoding_plan(fields, keep_meta=True)] == ["JPG", "__url__", "_m", "txt"]


@pytest.mark.parametrize("field", ["", "a/b", "a\0", 5, None])
def test_impossible_fields(field):
    """A field that cannot be part of a member's name is an error."""
    with pytest.raises(SampleError, match="field's name"):
        encoding_plan(("__key__", field), keep_meta=False)


def test_fields_that_differ_in_case():
    """Extensions are read in lower case, so two that differ in case only would be one."""
    with pytest.raises(SampleError, match="only in case"):
        encoding_plan(("__key__", "jpg", "JPG"), keep_meta=False)
