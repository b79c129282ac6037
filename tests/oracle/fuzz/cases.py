"""Random shards and random pipelines, by a seed. Written in words that all versions know; see player.py."""

import gzip
import json
import random

import numpy as np

from webdataset.testing import archives

HANDLERS = ["reraise_exception", "ignore_and_continue", "warn_and_continue", "ignore_and_stop", "warn_and_stop"]
KINDS = [
    "good", "good", "good", "good", "gapped", "fields", "fields", "names", "compressed", "empty", "cut", "no-end",
    "duplicate",
    "damaged", "junk", "split", "missing", "joined", "links", "again",
]  # fmt: skip
FIELDS = {
    "cls": [b"0", b"1", b"12", b"-3", b"x"],
    "txt": [b"", b"a", b"text", "caf\u00e9".encode(), b"1"],
    "json": [b"1", b"[1, 2]", b'{"a": null}', b'"text"', b"null", b"{"],
    "bin": [b"\0\1", b""],
    "seg.txt": [b"s"],
    "id": [b"7"],
    "xyz": [b"?"],
}
ODD_NAMES = [
    "a.b.c", "d/e.txt", "./x.txt", ".hidden.txt", "noext", "A.TXT", "__m__/y.txt", "__k.txt", "z..txt", "q.",
    "d.d/f.txt",
    "d/.h.txt", "caf\u00e9.txt", "b c.txt",
]  # fmt: skip


def as_npy(array):
    """An array as a file."""
    import io

    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def build_shard(rng, kind, number):
    """The bytes of a shard of some kind; None for one that is not there."""
    if kind in ("missing", "empty"):
        return None if kind == "missing" else archives.by_tarfile([])
    if kind == "junk":
        return rng.choice([b"", b"<html>" * 200, b"\0" * 512, b"x"])
    names = ["txt", "cls", *rng.sample(sorted(FIELDS), rng.randrange(3))]
    fields = list(dict.fromkeys(names))
    count = rng.randrange(1, 7)
    odd = kind == "fields"
    members = []
    for sample in range(count):
        key = f"{number}{sample}" if kind != "again" or rng.random() < 0.7 else "0"
        for field in fields:
            if kind == "gapped" and rng.random() < 0.3:
                continue
            values = FIELDS[field] if odd else FIELDS[field][: 2 + (field == "txt")]
            members.append((f"{key}.{field}", rng.choice(values)))
        if odd and rng.random() < 0.3:
            members.append((f"{key}.npy", as_npy(np.arange(rng.randrange(4)))))
        if odd and rng.random() < 0.2:
            members.append((f"{key}.json.gz", gzip.compress(b"[1]")))
    if kind == "names":
        members = [(name, b"%d" % at) for at, name in enumerate(rng.sample(ODD_NAMES, 6))]
    if kind == "duplicate":
        members.insert(rng.randrange(len(members) + 1), rng.choice(members))
    if kind == "split":
        rng.shuffle(members)
    if kind == "links":
        from webdataset.testing import archives as handmade

        link = handmade.member(b"9.txt", kind=rng.choice([b"1", b"2", b"5"]), linkname=members[0][0].encode())
        return link + archives.by_hand(members)
    data = archives.by_tarfile(members, format=rng.choice(["ustar", "gnu", "pax"]))
    if kind == "joined":
        return data + archives.by_tarfile([("z.txt", b"z")])
    if kind == "compressed":
        return archives.compressed(data, rng.choice(["gz", "bz2", "xz"]))
    if kind == "cut":
        return archives.by_hand(members)[: rng.randrange(1, 1024 * len(members))]
    if kind == "no-end":
        return archives.by_hand(members, end=b"\0" * 512 * rng.randrange(2))
    if kind == "damaged":
        body = bytearray(archives.by_hand(members))
        place = (1024 * rng.randrange(len(members)) + rng.randrange(300)) % (len(body) - 1024)
        body[place] ^= 1 << rng.randrange(7)
        return bytes(body)
    return data


ENDINGS = {"compressed": ".tar.gz"}


def function(name):
    """A function of the player's."""
    return {"$function": name}


def coin(rng):
    """True or False."""
    return rng.random() < 0.5


def digit(rng):
    """A number below 9."""
    return rng.randrange(9)


def handled(rng, **kw):
    """Arguments with a handler now and then."""
    return kw | ({"handler": {"$handler": rng.choice(HANDLERS)}} if rng.random() < 0.4 else {})


def of_samples(rng):
    """A stage over samples, and what comes out of it."""
    changes = ["with_length", "without_key", "some_fail", "some_none", "in_place"]
    fields = [["txt", "cls"], ["__key__", "txt"], ["json;txt", "cls"], ["txt cls"], ["__url__"]]
    patterns = [["*.txt", "*.cls"], ["*.json|*.txt"], ["*.none"]]
    renamed = [["*.txt", "t"], ["*.cls", "c"]]
    shuffled = {"initial": rng.choice([1, 3, 50]), "rng": {"$random": digit(rng)}}
    return rng.choice(
        [
            lambda: (["shuffle", [rng.choice([2, 5, 100])], shuffled], "samples"),
            lambda: (["shuffle", [rng.choice([0, 1])], {"rng": {"$random": 1}}], "samples"),
            lambda: (["decode", [], handled(rng)], "samples"),
            lambda: (["decode", [], handled(rng, only=rng.choice([["cls"], ["json", "txt"]]))], "samples"),
            lambda: (["decode", [], handled(rng, partial=True)], "samples"),
            lambda: (["map", [function(rng.choice(changes))], handled(rng)], "samples"),
            lambda: (["map", [function("to_key")], handled(rng)], "values"),
            lambda: (["map_dict", [], handled(rng, txt=function(rng.choice(["doubled", "size", "text"])))], "samples"),
            lambda: (["map_dict", [], handled(rng, cls=function("size"), txt=function("doubled"))], "samples"),
            lambda: (["select", [function(rng.choice(["even", "has_text"]))], {}], "samples"),
            lambda: (["rename", [], handled(rng, text="txt", keep=coin(rng))], "samples"),
            lambda: (["rename", [], handled(rng, a="json;cls", b=rng.choice(["txt", "nothing"]))], "samples"),
            lambda: (["rename_keys", renamed, {"must_match": coin(rng), "keep_unselected": coin(rng)}], "samples"),
            lambda: (["slice", rng.choice([[3], [1, 4], [0, 9, 2], [0]]), {}], "samples"),
            lambda: (["to_tuple", rng.choice(fields), handled(rng)], "tuples"),
            lambda: (["to_tuple", ["json", "txt"], handled(rng, missing_is_error=coin(rng))], "tuples"),
            lambda: (["extract_keys", rng.choice(patterns), {"ignore_missing": coin(rng)}], "tuples"),
            lambda: (["batched", [rng.choice([1, 2, 3])], {"partial": coin(rng)}], "batches"),
            lambda: (["batched", [2], {"collation_fn": rng.choice([None, function("as_list")])}], "lists"),
            lambda: (["listed", [2], {}], "lists"),
            lambda: (["associate", [{"00": {"extra": 1}, "10": {"txt": "other"}}], {}], "samples"),
            lambda: (["rsample", [rng.choice([0.0, 1.0])], {}], "samples"),
            lambda: (["xdecode", [], handled(rng)], "samples"),
            lambda: (["detshuffle", [4], {"initial": 2, "seed": rng.randrange(5)}], "samples"),
            lambda: (["Cached", [], {}], "samples"),
            lambda: (["log_keys", [], {}], "samples"),
        ]
    )()  # fmt: skip


def of_tuples(rng):
    """A stage over tuples."""
    first = rng.choice(["doubled", "size", "text"])
    return rng.choice(
        [
            lambda: (["map_tuple", [function(first), function("text")], handled(rng)], "tuples"),
            lambda: (["map_tuple", [function("size")], handled(rng)], "tuples"),
            lambda: (["batched", [rng.choice([1, 2, 3])], {"partial": coin(rng)}], "batches"),
            lambda: (["shuffle", [4], {"initial": 2, "rng": {"$random": digit(rng)}}], "tuples"),
            lambda: (["slice", [3], {}], "tuples"),
            lambda: (["map", [function("size")], handled(rng)], "values"),
            lambda: (["listed", [2], {}], "lists"),
        ]
    )()  # fmt: skip


def of_batches(rng):
    """A stage over batches."""
    return rng.choice([
        lambda: (["unbatched", [], {}], "any"),
        lambda: (["slice", [2], {}], "batches"),
        lambda: (["map", [function("size")], handled(rng)], "values"),
    ])()  # fmt: skip


def of_lists(rng):
    """A stage over lists."""
    return rng.choice([
        lambda: (["unlisted", [], {}], "any"),
        lambda: (["shuffle", [3], {"initial": 1, "rng": {"$random": 4}}], "lists"),
        lambda: (["map", [function("size")], handled(rng)], "values"),
    ])()  # fmt: skip


def of_values(rng):
    """A stage over numbers and texts."""
    return rng.choice([
        lambda: (["map", [function(rng.choice(["text", "doubled", "size"]))], handled(rng)], "values"),
        lambda: (["batched", [2], {}], "batches"),
        lambda: (["listed", [3], {}], "lists"),
        lambda: (["slice", [2], {}], "values"),
    ])()  # fmt: skip


OF = {"samples": of_samples, "tuples": of_tuples, "batches": of_batches, "lists": of_lists, "values": of_values}


def build_case(seed, number, folder):
    """Write the shards of a case into a folder, and return the case."""
    rng = random.Random(f"{seed} {number}")
    place = folder / f"{seed}-{number}"
    place.mkdir()
    odd = rng.random() < 0.5
    kinds = [rng.choice(KINDS) if odd else "good" for _ in range(rng.choice([1, 1, 2, 2, 3, 4]))]
    urls = []
    for at, kind in enumerate(kinds):
        name = f"s{at}{ENDINGS.get(kind, '.tar')}"
        data = build_shard(rng, kind, at)
        if kind == "compressed":
            name = "s%d.tar.%s" % (at, {b"\x1f\x8b": "gz", b"BZ": "bz2", b"\xfd7": "xz"}[data[:2]])
        if data is not None:
            (place / name).write_bytes(data)
        urls.append(f"/{place.name}/{name}")
    kind = rng.choice(
        [*["dataset"] * 6, "object", *["stages"] * 4, "uncalled", "uncalled", "by_hand", "by_hand", "resampled"]
    )
    options = {}
    if kind not in ("uncalled", "by_hand"):
        options = handled(rng)
        if rng.random() < 0.15:
            options["select_files"] = function("no_texts")
        if rng.random() < 0.15:
            options["rename_files"] = function(rng.choice(["in_folder", "upper"]))
    workers = rng.random() < 0.25
    stages, states, state = [], [], "samples"
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])):
        if state == "any":
            break
        states.append(state)
        stage, state = OF[state](rng)
        stages.append(stage)
    bound = None
    if rng.random() < 0.15:
        bound = rng.choice([["with_epoch", [rng.randrange(1, 9)]], ["repeat", [2]], ["repeat", [2, 5]], ["slice", [4]]])
    return {
        "number": number,
        "kinds": kinds,
        "urls": urls,
        "source": kind,
        "joined": rng.choice(["list", "colons"]) if kind == "dataset" else "list",
        "options": options,
        "shardshuffle": rng.choice([None, False, 0]),
        "list_seed": rng.choice([None, None, 0, 5]),
        "splitters": rng.choice([[], ["split_by_worker"], ["split_by_node", "split_by_worker"]]),
        "shard_shuffle": rng.choice([[], [], [3, 1, digit(rng)]]),
        "environment": (
            {"WORKER": str(rng.randrange(2)), "NUM_WORKERS": "2", "RANK": "0", "WORLD_SIZE": "1"} if workers else {}
        ),
        "stages": stages,
        "states": states,
        "fluent": rng.random() < 0.5,
        "bound": bound,
        "passes": rng.choice([1, 1, 2]),
    }


def described(case):
    """A case in one line, for people."""
    return json.dumps({name: value for name, value in case.items() if value not in ([], {}, None)})
