"""Computes the fingerprint of a dataset, by which a state tells whether it belongs to the dataset.

A fingerprint holds the names of the stages with the numbers that decide their order, the functions that select and
rename a shard's members, a hash of the shards' urls (without signatures), and the numbers of a specification's
sources.

Functions are identified equally in every process and Python version. What a name does not tell (the names and
constants of a lambda, defaults, what a closure or a partial holds) is hashed into the identity, as far as it is
numbers and text. A digest also covers the code of named functions, and the functions and numbers of their own module
that they name. File and line are left out, since they change with every edit, and so is every name of a module.

Reads nothing, never calls the function, never shows a url or what a function holds.
"""

import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from webdataset.caching.names import object_key
from webdataset.flow.run import ENDLESS, Bounds, expand_stages, item_bound
from webdataset.flow.stage_runner import stage_name
from webdataset.samples.sample_reader import Reading
from webdataset.shards.lazy_urls import BraceText, LazyUrls
from webdataset.shards.lists import ShardList
from webdataset.stages.base import FilterFunction, Stage

if TYPE_CHECKING:
    import dis

_PLAIN = (bool, int, float, str, bytes, type(None))
_LOADING = ("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST", "LOAD_COMMON_CONSTANT")
_MAX_DEPTH = 4  # of functions that hold functions
_MAX_VALUES = 256  # of a list whose values all count; of longer ones their ends do
_OPERATORS = ("COMPARE_OP", "BINARY_OP")
_PACKAGES = ("webdataset", "wids")


def identify_function(function: object) -> str:
    """Return the name of a function, and a digest of what else tells it apart.

    Args:
        function: a function, method, class, partial or an object that can be called.
    """
    known = sorted(_walk_value(function, 0))
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = stage_name(inner)
    if not known:
        return name
    return f"{name}#{hashlib.blake2b(repr(known).encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def digest_values(values: object) -> str | None:
    """Return a digest of the values that a stage was given, functions with their code; None where there are none.

    It is the same in every process and on every Python version for the same source text, but for functions whose
    bytecode names other constants there; so another digest is a reason to warn, and none to refuse.
    """
    known = sorted(set(_walk_value(values, 0, code=True)))
    if not known:
        return None
    return hashlib.blake2b(repr(known).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _walk_value(value: object, depth: int, *, code: bool = False) -> Iterable[str]:
    """Yield what a function, or something it holds, is made of."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _walk_list(value, depth, code=code)
    elif isinstance(value, dict) and code:
        for name, part in value.items():
            yield from (f"{name!r}={text}" for text in _walk_value(part, depth + 1, code=code))
    elif isinstance(value, functools.partial):
        for name, part in {"": value.args, "func": value.func, **value.keywords}.items():
            yield from (f"{name}={text}" for text in _walk_value(part, depth + 1, code=code))
    else:
        function = _find_function(value, objects=code)
        if function is not None:
            yield from _walk_function(function, depth, code=code)
    if depth and callable(value) and not (code and _is_user_function(value)):
        yield stage_name(value)


def _find_function(value: object, *, objects: bool) -> types.FunctionType | None:
    """Return the Python function of a function, a method or, where wanted, of a callable object."""
    function = getattr(value, "__func__", value) if isinstance(value, types.MethodType) else value
    if objects and not isinstance(value, type) and not isinstance(function, types.FunctionType):
        function = vars(type(value)).get("__call__")
    return function if isinstance(function, types.FunctionType) else None


def _walk_list(
    values: "list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]", depth: int, *, code: bool
) -> Iterable[str]:
    ordered = sorted(values, key=repr) if isinstance(values, set | frozenset) else values
    if code and len(ordered) > _MAX_VALUES:
        yield f"{len(ordered)} values"
        ordered = [*ordered[: _MAX_VALUES // 2], *ordered[-_MAX_VALUES // 2 :]]
    for place, part in enumerate(ordered):
        yield from (f"{place}.{text}" for text in _walk_value(part, depth + 1, code=code))


def _is_user_function(value: object) -> bool:
    """Tell whether this is a user's function, whose code tells more than its name."""
    function = getattr(value, "__func__", value)
    return isinstance(function, types.FunctionType) and not _is_own_function(function)


def _is_own_function(function: object) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] in _PACKAGES


def _walk_function(function: types.FunctionType, depth: int, *, code: bool) -> Iterable[str]:
    if function.__name__ == "<lambda>" or (code and not _is_own_function(function)):
        yield from _walk_code(function.__code__, operators=code)
    held = {"default": function.__defaults__ or (), **(function.__kwdefaults__ or {})}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        held[name] = _read_cell(cell)
    if code and not _is_own_function(function):
        held |= _find_globals(function)
    for name, part in held.items():
        # what a function may change while it runs is no part of what it is
        if part is not function and not (code and isinstance(part, list | dict | set)):
            yield from (f"{name}={text}" for text in _walk_value(part, depth + 1, code=code))


def _find_globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the functions and numbers of a function's own module that it names."""
    found = {}
    for name in _collect_names(function.__code__):
        value = function.__globals__.get(name)
        own = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
        if own or isinstance(value, bool | int | float):
            found[name] = value
    return found


def _collect_names(code: types.CodeType) -> set[str]:
    """Return the names that some code and the code in it use."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_collect_names, inner))


def _read_cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return ()


def _walk_code(code: types.CodeType, *, operators: bool = False) -> Iterable[str]:
    """Yield the names, texts, numbers and operators of some code.

    Not its instructions, which differ between Python versions.
    """
    import dis  # noqa: PLC0415  seldom needed, and slow to import

    yield from (f"name {name}" for name in sorted(code.co_names))
    steps = list(dis.get_instructions(code))
    repeated = _find_inlined_steps(steps) if "LOAD_COMMON_CONSTANT" in dis.opmap else set()
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        next_name = None if following is None else following.opname
        if step.offset in repeated:
            continue
        if operators and step.opname in _OPERATORS:
            yield from _format_operator(step)
        # the names of keyword arguments: a constant that is loaded in some versions and not in others
        if step.opname not in _LOADING or next_name == "CALL_KW":
            continue
        if isinstance(step.argval, types.CodeType):
            yield from _walk_code(step.argval, operators=operators)
        elif isinstance(step.argval, frozenset):
            yield f"constant {sorted(map(repr, step.argval))!r}"
        elif isinstance(step.argval, slice):
            # other versions load what it is made of
            yield from _format_constants((step.argval.start, step.argval.stop, step.argval.step))
        elif next_name == "BUILD_CONST_KEY_MAP":
            # the keys of a dict, which other versions load one by one
            yield from _format_constants(step.argval)
        # not the class that `assert` raises
        elif step.argval is not None and not callable(step.argval):
            yield f"constant {step.argval!r}"


def _format_constants(values: Iterable[object]) -> Iterable[str]:
    return [f"constant {value!r}" for value in values if value is not None]


def _find_inlined_steps(steps: "Sequence[dis.Instruction]") -> set[int]:
    """Return the offsets of what stands a second time: since 3.14 as the loop that any(), all() or tuple() would run.

    It is jumped over where the name is another function's by now.
    """
    inlined: set[int] = set()
    for load, test, jump in zip(steps, steps[1:], steps[2:], strict=False):
        if (load.opname, test.opname, jump.opname) == ("LOAD_COMMON_CONSTANT", "IS_OP", "POP_JUMP_IF_FALSE"):
            inlined.update(range(jump.offset, jump.argval))
    return inlined


def _format_operator(step: "dis.Instruction") -> Iterable[str]:
    """Yield the sign of a comparison or of arithmetic; indexing is an operator in some versions only."""
    shown = step.argrepr if step.opname == "BINARY_OP" else str(step.argval)
    sign = shown.removeprefix("bool(").removesuffix(")").strip()
    if sign and not sign.startswith("["):
        yield f"operator {sign}"


_NUMBERS = (bool, int, float, type(None))
_TEXTS = (*_NUMBERS, str)
_URLS_AT_ONCE = 4096
_CHANGING = ("epoch",)  # of shard lists: changes from pass to pass


def fingerprint(stages: Sequence[object], bounds: Bounds) -> dict[str, Any]:
    """Return the description of a dataset."""
    names, digest = [], hashlib.blake2b(digest_size=8)
    count = 0
    for stage in _walk_stages(stages):
        names.append(stage if isinstance(stage, str) else _format_stage(stage))
        for part in _walk_shard_sources(stage):
            count += _hash_urls(digest, part)
            if part is not stage:
                known = _select_attributes(part, _NUMBERS)
                if part is getattr(stage, "source", None):
                    # the weight of a source with a pipeline of its own stands among those of its mix
                    known.pop("weight", None)
                digest.update(repr(sorted(known.items())).encode() + b"\0")
    return {
        "stages": names,
        "shards": count,
        "urls": digest.hexdigest(),
        "passes": _finite_passes(bounds.passes),
        "items": bounds.items,
    }


def defer_description(stages: Sequence[object], bounds: Bounds) -> Callable[[], dict[str, Any]]:
    """Return what returns the description of a dataset, made once.

    It is made now, but for very many urls of braces: these do not change, and the first sample need not wait until all
    of them have been read.
    """
    describe = functools.cache(functools.partial(fingerprint, list(stages), bounds))
    if LazyUrls not in {type(getattr(stage, "urls", None)) for stage in stages}:
        describe()
    return describe


def describe_functions(stages: Sequence[object]) -> list[list[Any]]:
    """Return, for each stage, its name and a digest of the functions and values that a user gave it.

    Handlers are left out: what is done about an error may change between runs.
    """
    return [
        [stage_name(stage), digest_values(_collect_user_values(stage))]
        for stage in _walk_stages(stages)
        if not isinstance(stage, str)
    ]


def _collect_user_values(stage: object) -> object:
    """Return what a user gave a stage, as far as it decides what the stage gives."""
    if isinstance(stage, FilterFunction):
        kept = {name: value for name, value in stage.kw.items() if name != "handler"}
        return {"f": stage.f, "args": stage.args, **kept}
    if isinstance(stage, ShardList):
        return {}
    if not isinstance(stage, Stage):
        return {"f": stage} if callable(stage) else {}
    reading = getattr(stage, "reading", None)
    parts = {name: part for name, part in dict(vars(stage)).items() if name != "handler" and callable(part)}
    if isinstance(reading, Reading):
        parts |= {name: getattr(reading, name) for name in ("select_files", "rename_files", "keys")}
    return parts


def _hash_urls(digest: "hashlib.blake2b", part: object) -> int:
    """Hash the urls of one list of shards, and how many they are; return that."""
    urls = _find_urls(part)
    keys = _name_objects(urls)
    while some := list(islice(keys, _URLS_AT_ONCE)):
        digest.update("\0".join(some).encode("utf-8", "surrogateescape") + b"\0")
    if urls:
        digest.update(b"%d\0" % len(urls))
    return len(urls)


def _name_objects(urls: Sequence[Any]) -> Iterator[str]:
    """Yield each url without what changes while the object stays the same."""
    if not isinstance(urls, LazyUrls):
        yield from map(object_key, map(str, urls))
        return
    for part in urls.parts:
        yield from part if isinstance(part, BraceText) and part.is_plain else map(object_key, part)


def _finite_passes(passes: int) -> int | None:
    return None if passes >= ENDLESS else passes


def _walk_stages(stages: Sequence[object]) -> Iterable[Any]:
    """Yield the stages, each followed by those of the datasets in it; what holds for such a dataset, as text."""
    for stage in expand_stages(stages):
        yield stage
        for inner in getattr(stage, "datasets", None) or ():
            yield from _walk_dataset(inner)
        if isinstance(getattr(stage, "pipeline", None), list):
            yield from _walk_dataset(stage, named_already=True)


def _walk_dataset(dataset: object, *, named_already: bool = False) -> Iterable[Any]:
    """Yield what holds for a dataset in another one, and its stages."""
    stages = getattr(dataset, "pipeline", None)
    if not isinstance(stages, list):
        yield from [] if named_already else _walk_stages([dataset])
        return
    own = getattr(dataset, "seed", None)
    bounds = _finite_passes(getattr(dataset, "repetitions", 1)), item_bound(dataset)
    yield f"dataset(seed={own if isinstance(own, int) else None}, passes={bounds[0]}, items={bounds[1]})"
    yield from _walk_stages(stages)


def _walk_shard_sources(stage: object) -> Iterable[Any]:
    """Yield a stage, and what it draws shards from where that is several sources."""
    yield stage
    for name in ("sources", "lists"):
        parts = getattr(stage, name, None)
        yield from parts if isinstance(stage, ShardList) and isinstance(parts, list) else ()
    for holder in (stage, *(getattr(stage, "lists", None) or ())):
        source = getattr(holder, "source", None)
        if isinstance(holder, ShardList) and source is not None:
            yield source


def _find_urls(part: object) -> Sequence[Any]:
    urls = getattr(part, "urls", None)
    if urls is None:
        urls = getattr(getattr(part, "source", None), "urls", None)
    return urls if isinstance(urls, list | tuple | LazyUrls) else ()


def _select_attributes(part: object, kinds: tuple[type, ...]) -> dict[str, Any]:
    """Return the attributes that are numbers (or texts), by name."""
    # a copy: another thread that begins a run may add attributes meanwhile
    attributes = dict(getattr(part, "__dict__", {}))
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("_") and name not in _CHANGING and isinstance(value, kinds)
    }


def _format_stage(stage: object) -> str:
    if isinstance(stage, ShardList):
        known = _select_attributes(stage, _NUMBERS)
    elif isinstance(stage, Stage) and not isinstance(stage, FilterFunction):
        known = _select_attributes(stage, _TEXTS)
        known |= {name: part for name, part in dict(vars(stage)).items() if _is_number_tuple(part)}
        weights = getattr(stage, "probs", None)
        if weights is not None:
            known["probs"] = [float(weight) for weight in weights]
        known |= _describe_member_rules(getattr(stage, "reading", None))
    else:
        return stage_name(stage)
    return f"{stage_name(stage)}({', '.join(f'{name}={part!r}' for name, part in sorted(known.items()))})"


def _describe_member_rules(reading: object) -> dict[str, Any]:
    """Return what decides which members a reader takes, and what they are called, where that is not the default."""
    if not isinstance(reading, Reading):
        return {}
    found: dict[str, Any] = {} if reading.where is None else {"where": reading.where.normal}
    for name in ("select_files", "rename_files", "keys", "lcase", "suffixes", "duplicates", "split_samples"):
        value = getattr(reading, name)
        if value != getattr(Reading, name, None):
            plain = value if isinstance(value, _TEXTS) else None
            chosen = sorted(map(str, value)) if isinstance(value, list | tuple | set | frozenset) else plain
            found[name] = identify_function(value) if chosen is None else chosen
    return found


def _is_number_tuple(part: object) -> bool:
    """Tell whether an attribute is a row of numbers, as the bounds of a slice are."""
    return isinstance(part, tuple) and bool(part) and all(isinstance(number, _NUMBERS) for number in part)
