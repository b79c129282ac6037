"""Differences that the fuzz may find: the names of docs/deviations.md, and what each looks like.

A predicate sees the case and what it gives here and there. It is as narrow as can be: it goes by the message of the
error, or compares what is left once the difference is taken away.
"""

import json

OLD, NEW = frozenset({"0.2.86"}), frozenset({"1.0.2"})
BOTH = OLD | NEW


def error_of(passes):
    """The error that ends a case, or None."""
    return passes[-1] if passes and isinstance(passes[-1], dict) else None


def raises(passes, name, says=""):
    """Tell whether a case ends in an error of a class, with a message."""
    error = error_of(passes)
    return error is not None and name in error["raises"] and says in error["says"]


def agree(mine, theirs):
    """Tell whether a case gives the same; an error of ours must be caught by who catches theirs.

    Their assertions are the exception: no error of ours is an AssertionError.
    """
    mine_error, their_error = error_of(mine), error_of(theirs)
    if mine_error is None or their_error is None:
        return mine == theirs
    caught = their_error["raises"][0] in [*mine_error["raises"], "AssertionError"]
    return caught and mine[:-1] == theirs[:-1]


def changed(value, change):
    """A shown value with a change made in all of its parts, the innermost first."""
    if isinstance(value, list):
        return change([changed(part, change) for part in value])
    return value


def in_order(value):
    """A dict with its fields sorted."""
    return ["dict", sorted(value[1], key=str)] if len(value) == 2 and value[0] == "dict" else value


def as_lists(value):
    """A tuple as a list."""
    return ["list", value[1]] if len(value) == 2 and value[0] == "tuple" else value


def without_empty_key(value):
    """A dict without a key that is None."""
    if len(value) == 2 and value[0] == "dict":
        return ["dict", [pair for pair in value[1] if pair != ["__key__", None]]]
    return value


def without_null(value):
    """JSON null, where it came as bytes."""
    return None if value == ["bytes", "null"] else value


def alike(value):
    """A dict with its fields sorted, a tuple as a list, JSON null as None."""
    return without_null(as_lists(in_order(value)))


def agree_after(mine, theirs, change):
    """Tell whether a case gives the same once something is changed in its items."""
    return agree(*([change_passes(passes, change) for passes in (mine, theirs)]))


def change_passes(passes, change):
    """The passes of a case with their items changed."""
    return [one if isinstance(one, dict) else [changed(item, change) for item in one] for one in passes]


def kinds(case, *names):
    """Tell whether a case has a shard of some kinds."""
    return bool(set(names) & set(case["kinds"]))


def batches(case, state):
    """Tell whether a case makes batches of something."""
    return any(stage[0] == "batched" and of == state for stage, of in zip(case["stages"], case["states"], strict=True))


def handlers(case):
    """The handlers of a case, with the names of their stages."""
    told = [(name, kw["handler"]["$handler"]) for name, _, kw in case["stages"] if "handler" in kw]
    reader = case["options"].get("handler")
    return [*told, *([("reader", reader["$handler"])] if reader else [])]


def reader_goes_on(case):
    """Tell whether the reader's handler does not raise."""
    return any(name == "reader" and handler != "reraise_exception" for name, handler in handlers(case))


ITEMWISE = {"map", "map_dict", "decode", "rename", "rename_keys", "to_tuple", "extract_keys", "map_tuple", "log_keys"}


def itemwise(case):
    """Tell whether each item comes of one sample, and no handler stops."""
    stages = {stage[0] for stage in case["stages"]}
    stops = any(handler.endswith("_stop") for _, handler in handlers(case))
    return stages <= ITEMWISE and case["bound"] is None and not stops and not case["shard_shuffle"]


def items_of(passes):
    """The items of all passes."""
    return [item for one in passes if isinstance(one, list) for item in one]


def within(few, many):
    """Tell whether the items of some passes are among those of others, in the same order."""
    rest = iter(items_of(many))
    return all(any(item == other for other in rest) for item in items_of(few))


def gives_more(case, mine, theirs):
    """Tell whether ours gives what theirs gives, and more."""
    return not itemwise(case) or error_of(mine) is not None or within(theirs, mine)


def gives_less(case, mine, theirs):
    """Tell whether ours gives a part of what theirs gives, whole samples only."""
    return not itemwise(case) or within(mine, theirs)


def same_error(mine, theirs):
    """Tell whether both end in an error that is caught alike."""
    return error_of(mine) is not None and error_of(theirs) is not None and agree(mine[-1:], theirs[-1:])


def lost_before_error(case, mine, theirs):
    """Tell whether theirs ends in an error, and lacks only the last items before it."""
    if error_of(theirs) is None or (error_of(mine) is not None and not same_error(mine, theirs)):
        return False
    here, there = items_of(mine), items_of(theirs)
    return len(there) < len(here) and (here[: len(there)] == there or "shuffle" in str(case["stages"]))


def fails_in_the_sample_before(case, mine, theirs):
    """Tell whether theirs fails at a shard, where ours fails at the sample in front of it, which theirs never gives."""
    at_shard = raises(theirs, "FileNotFoundError") or raises(theirs, "ReadError")
    given = mine[:-1] if error_of(mine) else mine
    same = change_passes(given, alike) == change_passes(theirs[:-1], alike)
    return at_shard and bool(case["stages"]) and same


# what even a thousand cases may lack
SELDOM = frozenset({"batch-of-nothing", "broken-off-pass", "cached-in-place", "decoding-error", "json-null", "map-key"})

# id in docs/deviations.md: (versions from which ours differs, what it looks like)
DEVIATIONS = {
    "list-objects": (NEW, lambda case, mine, theirs: case["source"] == "object" and raises(theirs, "AssertionError")),
    "listed": (OLD, lambda case, mine, theirs: raises(theirs, "TypeError", "argument 'batchsize'")),
    "newer-names": (OLD, lambda case, mine, theirs: raises(theirs, "TypeError", "argument 'missing_is_error'")),
    "no-samples": (OLD, lambda case, mine, theirs: raises(mine, "NoSamples") and error_of(theirs) is None),
    "endless-empty": (OLD, lambda case, mine, theirs: theirs[-1] == ["hangs"] and case["bound"] is not None),
    "decoding-error": (
        OLD,
        lambda case, mine, theirs: (
            raises(mine, "DecodingError")
            and error_of(theirs) is not None
            and change_passes(mine[:-1], alike) == change_passes(theirs[:-1], alike)
        ),
    ),
    "json-null": (BOTH, lambda case, mine, theirs: agree_after(mine, theirs, without_null)),
    "handler-asked": (
        BOTH,
        lambda case, mine, theirs: (
            (raises(theirs, "ValueError", "No decoder found") or raises(theirs, "AttributeError", "attribute 'read'"))
            and any(name == "xdecode" and handler != "reraise_exception" for name, handler in handlers(case))
        ),
    ),
    "batch-dict": (
        BOTH,
        lambda case, mine, theirs: (
            (batches(case, "samples") or batches(case, "batches"))
            and (raises(theirs, "AssertionError", "<class 'dict'>") or agree_after(mine, theirs, in_order))
        ),
    ),
    "batch-tuple": (
        OLD,
        lambda case, mine, theirs: batches(case, "tuples") and agree_after(mine, theirs, as_lists),
    ),
    "batch-of-values": (BOTH, lambda case, mine, theirs: batches(case, "values")),
    "batch-of-nothing": (
        BOTH,
        lambda case, mine, theirs: raises(theirs, "ValueError", "max() arg is an empty sequence"),
    ),
    "full-batch": (
        BOTH,
        lambda case, mine, theirs: (
            any(stage[0] in ("batched", "listed") for stage in case["stages"])
            and (
                lost_before_error(case, *(change_passes(passes, alike) for passes in (mine, theirs)))
                or fails_in_the_sample_before(case, mine, theirs)
            )
        ),
    ),
    "broken-off-pass": (
        BOTH,
        lambda case, mine, theirs: (
            (case["shard_shuffle"] or "shuffle" in str(case["stages"]) or case["source"] == "resampled")
            and (
                (case["bound"] is not None and case["passes"] > 1 and mine[0] == theirs[0])
                or ("slice" in str(case["stages"]) and (case["bound"] is not None or case["passes"] > 1))
            )
        ),
    ),
    "map-key": (
        BOTH,
        lambda case, mine, theirs: (
            agree_after(mine, theirs, without_empty_key)
            or (raises(mine, "KeyError", "__key__") and '["__key__", null]' in json.dumps(theirs))
        ),
    ),
    "cached-in-place": (
        BOTH,
        lambda case, mine, theirs: (
            any(stage[0] == "Cached" for stage in case["stages"])
            and any(stage[0] in ("map", "map_dict") for stage in case["stages"])
            and (case["passes"] > 1 or case["bound"] is not None)
        ),
    ),
    "joined": (BOTH, lambda case, mine, theirs: kinds(case, "joined") and gives_more(case, mine, theirs)),
    "missing-end": (
        BOTH,
        lambda case, mine, theirs: (
            kinds(case, "no-end", "cut")
            and (raises(mine, "Truncated") or reader_goes_on(case))
            and gives_less(case, mine, theirs)
        ),
    ),
    "interrupted-sample": (BOTH, lambda case, mine, theirs: kinds(case, "cut") and reader_goes_on(case)),
    "bad-header": (
        BOTH,
        lambda case, mine, theirs: kinds(case, "damaged") and (raises(mine, "BadHeader") or reader_goes_on(case)),
    ),
    "split-samples": (
        BOTH,
        lambda case, mine, theirs: (
            kinds(case, "split", "names", "again", "duplicate", "links")
            and (raises(mine, "SplitSample") or reader_goes_on(case))
        ),
    ),
    "sample-before-error": (
        OLD,
        lambda case, mine, theirs: (
            len(case["kinds"]) > 1
            and (lost_before_error(case, mine, theirs) or fails_in_the_sample_before(case, mine, theirs))
        ),
    ),
    "border": (
        OLD,
        lambda case, mine, theirs: case["source"] == "resampled" or kinds(case, "again", "names"),
    ),
    "stop-at-duplicate": (
        BOTH,
        lambda case, mine, theirs: (
            kinds(case, "duplicate", "again")
            and any(name == "reader" and handler.endswith("_stop") for name, handler in handlers(case))
        ),
    ),
}


def explaining(version, case, mine, theirs):
    """The names of the deviations that a difference from a version may be."""
    return [name for name, (versions, fits) in DEVIATIONS.items() if version in versions and fits(case, mine, theirs)]
