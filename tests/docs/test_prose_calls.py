"""Calls that stand in the prose of README and documentation exist, take these arguments, and run.

The blocks of the pages run elsewhere; here are the calls between the lines, such as ``dataset.shuffle(1000)``. Each is
parsed, its function is looked up, and its arguments are bound to the function's signature. Then it is called with demo
shards, and what comes of it gives its first sample. ``...`` stands for anything, so calls that hold it are only bound.
"""

import ast
import builtins
import collections
import contextlib
import functools
import importlib.util
import inspect
import io
import json
import pkgutil
import random
import re
import typing
import warnings
from pathlib import Path

import numpy as np
import pytest

import webdataset as wds
import wids
from webdataset.stages.base import Run, Stage

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
CALL = re.compile(r"[\w\])]\(")
PIXELS = np.zeros((8, 8, 3), np.uint8)
NAME = re.compile(r"(wds|webdataset|wids)(\.\w+)+")
URL = re.compile(r"^http\(s\):")

# spans of code with a bracket that are no calls, and why
NO_CALLS = {
    "wds.merge_states([state of every rank])": "words stand for the list",
}
# names that pages give although they do not exist, and why
NO_NAMES = {
    "wds.Dataset": "of a version before 0.2; the page says what to write here",
}
# calls that are not bound to a signature, and why
UNBOUND = {
    "DataLoader(dataset, batch_size=None, num_workers=n)": "a function of torch",
    "isinstance(dataset, torch.utils.data.IterableDataset)": "needs torch; a block of the quick start asserts it",
    "self.__class__(...)": "what programs of others say",
    "type(self)": "what programs of others say",
    "len()": "names a function of Python",
    "wds.DatasetNode(dataset)": "derives from a class of torchdata; tests/interop runs it",
}


def normal(text):
    """Return a span of code as Python: ellipses and arguments without a value stand for anything."""
    text = " ".join(text.split()).replace("\u2026", "...")
    text = re.sub(r"=(?=[,)])", "=...", text)
    text = re.sub(r"(=[^,()]*), \.\.\.\)", r"\1, **more)", text)
    return f"dataset{text}" if text.startswith(".") else text


def spans(page):
    """Return (line, text) of the inline code of a page that holds a bracket behind a word."""
    text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), page.read_text(encoding="utf-8"))
    return [
        (text.count("\n", 0, found.start()) + 1, normal(found[2]))
        for found in CODE.finditer(text)
        if CALL.search(found[2]) and not URL.search(found[2])
    ]


def dotted_names():
    """Return {name of the package, such as ``wds.Loader``: the first place that holds it}."""
    found = {}
    for page in PAGES:
        text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), page.read_text(encoding="utf-8"))
        for span in CODE.finditer(text):
            if NAME.fullmatch(span[2]):
                found.setdefault(span[2], f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, span.start()) + 1}")
    return found


def all_calls():
    """Return {call: the first place that holds it}."""
    found = {}
    for page in PAGES:
        for line, text in spans(page):
            found.setdefault(text, f"{page.relative_to(ROOT)}:{line}")
    return found


CALLS = all_calls()
CHECKED = [call for call in CALLS if call not in NO_CALLS and call not in UNBOUND]
# calls that are bound and not run, and why
NOT_RUN = {
    'wds.WebDataset(["s3://shards/a[1]{x}.tar"])': "reads from a service; tests/storage does so",
    'wds.load_spec(document, url="https://...")': "the address stands for any",
}
NEED_TORCH = {'wds.equal_steps(loader, "drop")', "wds.check_ranks(dataset)", "loader.with_length(n)"}
if importlib.util.find_spec("torch") is None:
    NOT_RUN |= dict.fromkeys(NEED_TORCH, "torch is not installed")
# what is refused, and with which error
REFUSED = {"batched(0)": wds.WebDatasetError}
# of the demo shards none matches
EMPTY = {"RoundRobin([])", 'WebDataset(urls, where="json.width >= 512")'}


def is_about_the_inside(place):
    """Tell whether a page is for those who write the library."""
    return place.startswith(("CONTRIBUTING", "docs/design/"))


def is_open(text):
    """Tell whether a call holds ``...``, which stands for anything."""
    return "..." in text or "**more" in text


RUN = [call for call in CHECKED if not (is_open(call) or is_about_the_inside(CALLS[call]) or call in NOT_RUN)]


class Callable(typing.NamedTuple):
    """Something that a page may mean, and how it is called."""

    function: typing.Any
    signature: inspect.Signature


ANYTHING = inspect.signature(lambda *given, **named: None)


def plainly(function):
    """Return a function, as it is called by its name, in a list; an empty list where it has no signature."""
    try:
        return [Callable(function, inspect.signature(function))]
    except (TypeError, ValueError):
        return []


def method(owner, name):
    """Return a method of a class as it is called on an instance, in a list; an empty list where there is none."""
    found = inspect.getattr_static(owner, name, None)
    if found is None or not callable(getattr(owner, name)):
        return []
    if isinstance(found, staticmethod | classmethod):
        return plainly(getattr(owner, name))
    return [
        Callable(one.function, one.signature.replace(parameters=list(one.signature.parameters.values())[1:]))
        for one in plainly(getattr(owner, name))
    ]


@functools.cache
def internal():
    """Return {name: what gives its meanings} of all that the package defines; pages of design name functions of it.

    Signatures are made when a name is looked up: those of all names take ten times as long as the tests.
    """
    found = collections.defaultdict(list)
    for module in pkgutil.walk_packages(wds.__path__, "webdataset."):
        with contextlib.suppress(ImportError):  # needs a package that is not installed
            here = importlib.import_module(module.name)
            for name, member in vars(here).items():
                if getattr(member, "__module__", None) != module.name:
                    continue
                found[name].append(functools.partial(plainly, member))
                found[f"{module.name.rpartition('.')[2]}.{name}"].append(functools.partial(plainly, member))
                for part in dir(member) if inspect.isclass(member) else ():
                    found[part].append(functools.partial(method, member, part))
                    found[f"{name}.{part}"].append(functools.partial(method, member, part))
    return found


def inside(name, page):
    """Return what a name means inside the package, where a page is for those who write the library."""
    return [one for look in internal().get(name, ()) for one in look()] if is_about_the_inside(page) else []


@functools.cache
def owners():
    """Return {the word by which pages call a value: its classes}."""
    elastic = wds.WebDataset("x-0.tar", shardshuffle=False).elastic()
    return {
        "dataset": [type(elastic)],
        "loader": [wds.Loader, wds.WebLoader],
        "run": [type(elastic.elastic_run()), type(wds.WebDataset("x-0.tar", shardshuffle=False).start()), Run],
        "spec": [wds.DatasetSpec],
        "stats": [wds.LoaderStats],
        "shard": [wds.IndexedShard],
    }


def meanings(head, page):
    """Return what a call may mean.

    Args:
        head: the expression that is called.
        page: where it stands.
    """
    if isinstance(head, ast.Name):
        methods = [one for kinds in owners().values() for kind in kinds for one in method(kind, head.id)]
        named = [getattr(module, head.id, None) for module in (wds, wids)]
        if not methods and hasattr(builtins, head.id):
            return [Callable(getattr(builtins, head.id), ANYTHING)]
        public = [one for value in named if value is not None for one in plainly(value)]
        return [*methods, *public, *inside(head.id, page)]
    if isinstance(head, ast.Call):  # what a call gives is called
        return [one for kind in results(head, page) for one in method(kind, "__call__")]
    if isinstance(head.value, ast.Call):
        return [one for kind in results(head.value, page) for one in method(kind, head.attr)]
    words = ast.unparse(head).split(".")
    methods = [one for kind in owners().get(words[0], ()) for one in method(kind, head.attr)]
    if words[0] == "dataset" and hasattr(wds, head.attr):  # the method passes on what the stage takes
        methods += plainly(getattr(wds, head.attr))
    value = looked_up(head)
    return [*methods, *(plainly(value) if value is not None else []), *inside(".".join(words[-2:]), page)]


def looked_up(head):
    """Return what a dotted name of the package, or of a module of it, stands for; None where it is neither."""
    first, _, rest = ast.unparse(head).partition(".")
    for module in {"wds": ["webdataset"], "random": ["random"]}.get(first, [first, f"webdataset.{first}"]):
        with contextlib.suppress(ImportError, AttributeError, ValueError):
            return pkgutil.resolve_name(f"{module}.{rest}")
    return None


def results(call, page):
    """Return the classes of what a call gives, as far as annotations tell."""
    found = []
    for one in meanings(call.func, page):
        if inspect.isclass(one.function):
            found.append(one.function)
        else:
            found.append(typing.get_type_hints(one.function).get("return"))
    return [kind for kind in found if inspect.isclass(kind)]


def fits(signature, call):
    """Tell whether the arguments of a call bind to a signature; ``...`` and ``**more`` stand for any number."""
    given = [node for node in call.args if not (isinstance(node, ast.Constant) and node.value is ...)]
    partial = len(given) < len(call.args) or any(keyword.arg is None for keyword in call.keywords)
    named = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    try:
        (signature.bind_partial if partial else signature.bind)(*given, **named)
    except TypeError:
        return False
    return True


def takes_anything(signature):
    """Tell whether a signature passes on whatever it is given, as a method does that stands for a stage."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def misfit(text, page):
    """Return what is wrong with a call and the calls in it, or None.

    Args:
        text: the call, as :func:`normal` gives it.
        page: where it stands.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return f"{text}: {error.msg}"
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        found = meanings(call.func, page)
        if not found:
            return f"{ast.unparse(call.func)} does not exist"
        exact = [one for one in found if not takes_anything(one.signature)]
        if not any(fits(one.signature, call) for one in exact or found):
            return f"{ast.unparse(call)} does not fit {[str(one.signature) for one in found]}"
    return None


@pytest.mark.parametrize("text", CHECKED)
def test_the_call_exists_and_takes_its_arguments(text):
    """What the page calls is there, and takes these arguments."""
    assert misfit(text, CALLS[text]) is None, CALLS[text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wds.shufle(1000)", "wds.shufle does not exist"),
        ("dataset.shuffle(1000, initial=100, sized=3)", "does not fit"),
        ("wds.sample_counts()", "does not fit"),
        ("loader.stats().reports()", "loader.stats().reports does not exist"),
        ("wds.shuffle(1000", "was never closed"),
        ("wds.shuffle(wds.sizes(1))", "wds.sizes does not exist"),
    ],
)
def test_wrong_calls_are_found(text, message):
    """A name that does not exist, and arguments that a function does not take, are told."""
    assert message in misfit(text, "README.md:1")


@pytest.mark.parametrize("name", dotted_names())
def test_the_name_exists(name):
    """A name of the package that a page gives can be looked up."""
    with pytest.raises(AttributeError) if name in NO_NAMES else contextlib.nullcontext():
        pkgutil.resolve_name(name.replace("wds.", "webdataset."))


class Names(dict):
    """What the names in a call stand for: demo values, then methods of the values, then public functions."""

    def __missing__(self, name):
        values = [self[word] for word in ("dataset", "resumable", "loader", "run", "flow", "statistics", "shard")]
        for owner in (*values, wds, wids):
            if hasattr(owner, name):
                return getattr(owner, name)
        raise KeyError(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with three shards and their indexes, records, documents, and a specification."""
    place = tmp_path_factory.mktemp("prose")
    samples = [{"__key__": f"{n:04d}", "png": PIXELS, "cls": n, "txt": "one", "json": {"number": n}} for n in range(30)]
    with wds.ShardWriter(str(place / "train-%04d.tar"), maxcount=10, verbose=0) as sink:
        for sample in samples:
            sink.write(sample)
    wds.write_indexes(shards(place), ["dali", "wids"])
    for name in ("r.cbors", "r.msgpack"):
        with wds.RecordWriter(str(place / name)) as sink:
            for sample in samples:
                sink.write({"__key__": sample["__key__"], "cls": sample["cls"]})
    for layout in ("siblings", "inline"):
        with wds.DocumentWriter(str(place / f"{layout}.tar"), layout) as sink:
            sink.write({"__key__": "d", "parts": [{"type": "text", "text": "one"}]})
    sources = [{"name": "all", "shards": "train-{0000..0002}.tar"}]
    (place / "mix.json").write_text(json.dumps({"version": 1, "splits": {"train": {"sources": sources}}}))
    return place


def shards(folder):
    """Return the paths of the demo shards."""
    return [str(path) for path in sorted(folder.glob("train-*.tar"))]


def other_values(text, page, urls):
    """Return what names stand for in some calls, where that is something else than in the others."""
    name = text.partition("(")[0]
    if name in ("cbors_to_samples", "cbors2_to_samples", "msgpacks_to_samples"):
        return {"dataset": wds.SimpleShardList("r.msgpack" if name.startswith("msg") else "r.cbors")}
    if name in ("dataset.interleaved", "interleaved", "sibling_fields"):
        name = "inline.tar" if "inline" in text else "siblings.tar"
        return {"dataset": wds.WebDataset(name, shardshuffle=False)}
    if page.startswith("docs/wids.md"):
        dataset = wids.ShardListDataset("shardindex.json")
        return {"dataset": dataset, "sampler": wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0)}
    if name == "loader.with_length":
        return {"loader": wds.WebLoader(wds.WebDataset(urls, shardshuffle=10), batch_size=None)}
    elastic = wds.WebDataset(urls, shardshuffle=10, seed=1).elastic()
    return {"dataset": elastic} if page.startswith("docs/resume.md") else {}


class MyClass:
    """A class of a program's own."""


@pytest.fixture
def names(folder, monkeypatch):
    """A function: what the names of a call stand for, made anew."""
    monkeypatch.chdir(folder)
    urls = shards(folder)
    dataset = wds.WebDataset(urls, shardshuffle=10, seed=1)
    run = iter(dataset.elastic())
    next(run)
    document = {"version": 1, "splits": {"train": {"sources": [{"name": "all", "shards": urls}]}}}
    with contextlib.ExitStack() as closing:
        loader = closing.enter_context(wds.Loader(dataset.decode().to_tuple("cls").elastic(), 4, workers=1))
        shard = closing.enter_context(wds.IndexedShard(urls[0]))
        names = Names(
            wds=wds, webdataset=wds, wids=wids, random=random, dataset=dataset, resumable=dataset.elastic(), urls=urls,
            url=urls[0], loader=loader, run=run, flow=dataset.start(), shard=shard, statistics=loader.stats(),
            spec=wds.load_spec("mix.json"), document=document, split="train", dataset_name="train",
            state=run.state_dict(), place=None, key="0003", data=b"x", n=4, s=1, a=dataset, b=4, epochs=3,
            f=lambda value, *more: value,
            g=lambda value, *more: value, generator=random.Random(1), MyClass=MyClass,
            profiles=(wds.config.Profile(name="team", endpoint_url="https://s3.example"),),
            routes=(wds.config.Route("s3://a/", "s3://b/"),), error=wds.WebDatasetError("broken"),
        )  # fmt: skip

        def of_call(text):
            names.update({"b": dataset} if CALLS[text].startswith("README") else {})
            return names | other_values(text, CALLS[text], urls)

        yield of_call


def first(result, dataset):
    """Take the first sample of what a call gave: of a dataset, or of a stage behind the demo dataset."""
    if isinstance(result, Stage):
        result = wds.DataPipeline(dataset, result)
    if isinstance(result, wds.DataPipeline):
        return next(iter(result))
    return result


@pytest.mark.parametrize("text", RUN)
def test_the_call_runs(text, names):
    """The call works on demo shards, and what it gives has a first sample."""
    given = Names(names(text))
    looked_up(ast.Name(text.partition("(")[0]))  # modules that are called by their full names are imported
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            pytest.raises(REFUSED.get(text, StopIteration)) if text in {*REFUSED, *EMPTY} else contextlib.nullcontext()
        ):
            exec(text if text.startswith("for ") else f"found = {text}", {}, given)
            first(given.get("found"), given["dataset"])
    if hasattr(given.get("found"), "__exit__"):
        given["found"].__exit__(None, None, None)


def test_lists_of_exceptions_hold_nothing_that_is_gone():
    """What is left out, or refused, stands on a page; and most calls do run."""
    assert {*NO_CALLS, *UNBOUND, *NOT_RUN, *NEED_TORCH, *REFUSED, *EMPTY} <= set(CALLS)
    assert len(RUN) > 90
