"""JSON values: one form for equal values, and parts that are what they must be."""

import json

import pytest

from webdataset.core.json_types import as_int, as_list, as_object, as_pair, as_text, normalize_json
from webdataset.samples.address import CheckedAddress


def test_equal_values_have_one_form():
    """Tuples become lists and keys are sorted, at every depth."""
    normal = normalize_json({"b": (1, [CheckedAddress(1, 2, 3, 4)]), "a": {"d": None, "c": True}})
    assert json.dumps(normal) == '{"a": {"c": true, "d": null}, "b": [1, [[1, 2, 3, 4]]]}'
    assert normal == json.loads(json.dumps(normal))


@pytest.mark.parametrize(
    ("access", "fitting", "others"),
    [
        (as_object, {"a": 1}, [[1], 1, "a", None]),
        (as_list, [1], [{"a": 1}, 1, "ab", None]),
        (as_list, CheckedAddress(1, 2, 3, 4), [b"ab"]),
        (as_int, 3, [3.0, "3", [3], None]),
        (as_text, "ab", [1, ["a"], None]),
    ],
)
def test_a_part_of_another_type_is_refused(access, fitting, others):
    """A value of the type is returned as it is; nothing is converted to it."""
    assert access(fitting) is fitting
    for other in others:
        with pytest.raises(TypeError, match=f"{type(other).__name__} in the place of"):
            access(other)


def test_a_pair_has_two_parts():
    """A pair is given as its parts; a list of another length is refused."""
    assert as_pair([[1, 2], 3]) == ([1, 2], 3)
    with pytest.raises(TypeError, match="a list of 3 in the place of a pair"):
        as_pair([1, 2, 3])
