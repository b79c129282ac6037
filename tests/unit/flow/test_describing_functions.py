"""A state tells whether a user's function has changed since it was saved; digests are the same on every Python."""

import dis
import functools
import json
import warnings
from types import SimpleNamespace

import pytest

import webdataset as wds
from webdataset.flow import elastic_state, fingerprint
from webdataset.flow.fingerprint import digest_values, identify_function

THRESHOLD = 3
SECRET = "hunter2"


def helped(number):
    """Use a number of this module."""
    return number + THRESHOLD


def everything(s, k=2, *, z="a"):
    """Use what the bytecode of Python versions writes in different ways."""
    if s["cls"] >= 5 and not s.get("bad") and s["a"] is None:
        return None
    try:
        v = [helped(i) for i in range(10) if i % 2 and i != 7]
        w = {a: b for a, b in zip(v, v, strict=True)}  # noqa: C416
        print(f"{w!r:>10}", sep="", end="x")  # noqa: T201
    except (KeyError, ValueError) as error:
        raise RuntimeError("x") from error
    finally:
        s.pop("q", None)
    with open("f") as g:  # noqa: PTH123
        s |= {"x": -1, "y": 2.5, "t": (1, 2, "z"), "b": b"ab", "big": 10**6, "g": g}
    while THRESHOLD < 5 and v:
        v = v[1:-1]
        v += [1]
        v[0] -= 1
    match s:
        case {"a": 1}:
            pass
        case [1, 2]:
            return 3
    return sorted(v, key=lambda q: -q, reverse=True)


def limited(n):
    """Return a function that holds a number."""

    def inner(s):
        return s["n"] > n and any(x for x in s if x)

    return inner


class Scaled:
    """An object that is called, and its method."""

    def __call__(self, s):
        """Multiply."""
        return s * 2

    def for_stream(self, s):
        """Divide."""
        return s / 7


RECORDED = {
    "function": ([everything], "c521df4494597692"),
    "closure": ([limited(3)], "37f54e4ab85ad7b6"),
    "object": ([Scaled()], "c9a94ffa48cc797d"),
    "method": ([Scaled().for_stream], "031e072f2426773a"),
    "partial": ([functools.partial(everything, k=3)], "56b5601285eee4c0"),
    "lambda": ({"f": lambda s, *a, **k: (s, a, k) if s else [x**2 for x in a]}, "384a5d01686d671c"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_digests_are_those_of_other_pythons(name):
    """They were recorded under 3.11, and are the same under 3.12, 3.13 and 3.14."""
    values, digest = RECORDED[name]
    assert digest_values(values) == digest


# what 3.12, 3.13 or 3.14 compile in another way than 3.11; the name is what refuses a state
WRITTEN = {
    "lambda n: any(n.endswith(e) for e in ('.jpg', '.png'))": "7a46ddae",
    "lambda s: all(x for x in s['a'] if x != 'q') and tuple(x for x in s)": "fffc2347",
    "lambda s: (s[2:7], s[:-1], s[1:len(s)])": "dfec6377",
    "lambda s: {'a': 1, 'b': s, 'c': [s]}": "56e01add",
    "lambda s: {**s, 'a': 300} if s in {1, 2} else [1, 2, 3]": "79b3558d",
    "lambda s: f'{s}{s!r:>4}' + s['a']['b'] if not s.get('x', k=3) is None else min(s, 2)": "3c0f184a",
}


@pytest.mark.parametrize("text", WRITTEN)
def test_names_of_lambdas_are_those_of_other_pythons(text):
    """A state that another Python saved is not refused for how that compiled a lambda."""
    assert identify_function(eval(text)) == f"<lambda>#{WRITTEN[text]}"  # noqa: S307  the texts above


def test_constants_that_3_15_loads_by_an_instruction_of_its_own(monkeypatch):
    """As it compiles them, recorded under 3.15.2; the class that an assertion raises is no constant of the function."""
    code = (lambda s: (s[:-1], "", True, False)).__code__
    wanted = sorted(fingerprint._walk_code(code))
    steps = [
        SimpleNamespace(opname="LOAD_COMMON_CONSTANT", argval=value, offset=2 * place, argrepr="")
        for place, value in enumerate((None, -1, "", True, False, AssertionError))
    ]
    monkeypatch.setattr(dis, "get_instructions", lambda _: steps)
    assert sorted(fingerprint._walk_code(code)) == wanted


def made(text):
    """Return the function ``f`` of some source text."""
    space = {"__name__": "user"}
    exec(text, space)  # noqa: S102  texts of functions that differ in one place
    return space["f"]


CHANGES = {
    "number": ("def f(s): return s['n'] > 3", "def f(s): return s['n'] > 4"),
    "comparison": ("def f(s): return s['n'] > 3", "def f(s): return s['n'] < 3"),
    "arithmetic": ("def f(s): return s['n'] + 3", "def f(s): return s['n'] * 3"),
    "text": ("def f(s): return s['n']", "def f(s): return s['m']"),
    "method": ("def f(s): return s.upper()", "def f(s): return s.lower()"),
    "default": ("def f(s, n=1): return n", "def f(s, n=2): return n"),
    "named number": ("N = 1\ndef f(s): return s + N", "N = 2\ndef f(s): return s + N"),
    "named function": (
        "def g(s): return s > 1\ndef f(s): return g(s)",
        "def g(s): return s > 2\ndef f(s): return g(s)",
    ),
    "lambda": ("f = lambda s: s > 1", "f = lambda s: s < 1"),
    "within": ("def f(s): return [x + 1 for x in s]", "def f(s): return [x + 2 for x in s]"),
    "generator": ("def f(s):\n    for x in s: yield x, 1", "def f(s):\n    for x in s: yield x, 2"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_one_thing_is_another_digest(name):
    """The same text read again is the same, also at another line and under other remarks."""
    one, other = CHANGES[name]
    assert digest_values([made(one)]) == digest_values([made("# a remark\n\n" + one)])
    assert digest_values([made(one)]) != digest_values([made(other)])


def test_functions_that_call_each_other_and_long_lists_end():
    """A digest goes no deeper than a few functions, and does not read all of a list."""
    recursive = made("def g(s): return f(s)\ndef f(s): return g(s) if s else f(s - 1)")
    numbers = list(range(1_000_000))
    holding = functools.partial(max, numbers)
    assert digest_values([recursive]) is not None
    assert digest_values([holding]) != digest_values([functools.partial(max, numbers[:-1])])
    circle: dict[str, object] = {"one": 1}
    circle["itself"] = circle
    assert digest_values(circle) != digest_values({"one": 1})


def test_a_named_function_is_its_name():
    """What it does is no part of the name, and neither is what it is given in a dictionary; only a lambda has more."""
    one, other = (made(f"def f(s, k={{}}): return s + {number}") for number in (1, 2))
    assert identify_function(one) == identify_function(other)
    assert "#" not in identify_function(one)
    assert "#" in identify_function(lambda s: s + 1)


@pytest.fixture
def urls(tmp_path):
    """Two shards."""
    for number in range(2):
        with wds.TarWriter(str(tmp_path / f"{number}.tar")) as sink:
            for index in range(20):
                sink.write({"__key__": f"{number}-{index}", "txt": "x", "cls": index})
    return str(tmp_path / "{0..1}.tar")


def state_of(dataset):
    """Return the state after three items, as it is saved."""
    run = iter(dataset)
    for _ in range(3):
        next(run)
    return json.loads(json.dumps(run.state_dict()))


STAGES = {
    "map": (lambda ds: ds.map(lambda s: s["cls"]), lambda ds: ds.map(lambda s: s["txt"])),
    "select": (
        lambda ds: ds.select(lambda s: s["cls"] != b"18"),
        lambda ds: ds.select(lambda s: s["cls"] not in {b"18", b"19"}),
    ),
    "map_dict": (lambda ds: ds.map_dict(txt=len), lambda ds: ds.map_dict(txt=str)),
    "to_tuple": (lambda ds: ds.to_tuple("txt", "cls"), lambda ds: ds.to_tuple("cls", "txt")),
    "foreign": (
        lambda ds: ds.compose(made("def f(s):\n    for x in s: yield x, 1")),
        lambda ds: ds.compose(made("def f(s):\n    for x in s: yield x, 2")),
    ),
    "collation": (
        lambda ds: ds.batched(2, collation_fn=lambda b: b),
        lambda ds: ds.batched(2, collation_fn=lambda b: b[0]),
    ),
    "rng": (lambda ds: ds.map(lambda s, r: s, rng=True), lambda ds: ds.map(lambda s, r: (s, 1)[0], rng=True)),
}


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch):
    """Each test warns as a new process does."""
    monkeypatch.setattr(elastic_state, "_warned", set())


@pytest.mark.parametrize("load", ["dataset", "run", "elastic_run"])
@pytest.mark.parametrize("name", STAGES)
def test_another_function_is_warned_of_once(urls, name, load):
    """The run goes on; the same function gives no warning, whatever way the state takes."""
    base = wds.WebDataset(urls, shardshuffle=False, seed=1)
    one, other = (change(base) for change in STAGES[name])

    def go_on(dataset, state):
        if load == "dataset":
            dataset.load_state_dict(state)
            return list(dataset)
        if load == "run":
            run = iter(dataset)
            run.load_state_dict(state)
            return list(run)
        return list(dataset.elastic_run(state=state))

    state = state_of(one.elastic(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest = go_on(one.elastic(2), state)
    with pytest.warns(UserWarning, match=r"what these stages were given has changed: stage \d, ") as caught:
        assert len(go_on(other.elastic(2), state)) == len(rest) - 2 * (name == "select")
    assert len(caught) == 1


def test_what_a_function_changes_while_it_runs_is_no_change(urls):
    """A list in a closure may have grown since the state was saved."""
    seen = []
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(lambda s: seen.append(s["__key__"]) or s).elastic(2)
    state = state_of(dataset)
    assert len(seen) == 3
    assert len(list(dataset.elastic_run(state=state))) == 37


def test_another_handler_is_no_other_function(urls):
    """A run that stopped at a bad sample goes on with a handler that steps over it."""
    base = wds.WebDataset(urls, shardshuffle=False, seed=1)
    state = state_of(base.map(len).elastic(2))
    tolerant = wds.WebDataset(urls, shardshuffle=False, seed=1, handler=wds.warn_and_continue)
    assert len(list(tolerant.map(len, handler=wds.ignore_and_continue).elastic(2).elastic_run(state=state))) == 37


def test_no_secret_and_no_name_of_a_module_is_in_a_state(urls):
    """What functions hold is hashed."""
    secret = SECRET
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(lambda s: (s, secret)[0]).elastic(2)
    text = json.dumps(state_of(dataset))
    assert SECRET not in text
    assert "webdataset." not in text.replace("webdataset.elastic", "")
