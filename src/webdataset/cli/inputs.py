"""Turns arguments of the command line into shards, in one way for every command.

An argument is one of these, tried in this order: ``-`` (a shard on standard input), ``@list.txt`` (one expression a
line; ``@-`` reads the list from standard input), a directory, a dataset specification or wids index (``.yaml``,
``.yml``, ``.json``), or an expression of :func:`webdataset.shards.expand.expand_urls`.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from webdataset.core.errors import NoShards, UnsafeSpec, UsageError

if TYPE_CHECKING:
    from webdataset.samples.sample_reader import Reading
    from webdataset.shards.specs.mix import Mix

_SPECS = (".yaml", ".yml", ".json")
_MOST_NESTED = 10
_MOST_LIST_BYTES = 64 << 20
_MOST_LISTED = 10_000_000


@dataclass(frozen=True)
class Inputs:
    """The shards that a command reads.

    Args:
        urls: in the order of the command line.
        storage_options: what they are opened with, or None.
    """

    urls: tuple[str, ...]
    storage_options: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.urls)

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.urls)

    def reading(self, **rules: Any) -> "Reading":
        """Return the rules of reading with these options.

        Args:
            **rules: fields of :class:`~webdataset.samples.sample_reader.Reading`.
        """
        from webdataset.samples.sample_reader import Reading  # noqa: PLC0415  loaded when something is read

        return Reading(storage_options=self.storage_options, **rules)


def expand_inputs(arguments: Iterable[str], *, storage_profile: str | None = None, split: str | None = None) -> Inputs:
    """Return the shards that arguments stand for.

    Args:
        arguments: as typed.
        storage_profile: name of the profile that urls are opened with.
        split: the split of dataset specifications; needed where one has several and none is called ``train``.

    Raises:
        NoShards: they stand for nothing.
        UsageError: an expression that cannot mean anything, or standard input twice.
        SourceError: a list, specification or store cannot be read.
    """
    options = None if storage_profile is None else {"profile": storage_profile}
    urls = [url for argument in arguments for url in _expand(argument, options, split, 0)]
    if not urls:
        raise NoShards("the arguments stand for no shards")
    if urls.count("-") > 1:
        raise UsageError("standard input can be read only once: give '-' one time")
    return Inputs(tuple(urls), options)


def _expand(argument: str, options: Any, split: str | None, depth: int) -> list[str]:
    if argument == "-":
        return ["-"]
    if argument.startswith("@") and len(argument) > 1 and not os.path.lexists(argument):
        return _expand_list(argument[1:], options, split, depth)
    if _is_directory(argument):
        return _list_directory(argument)
    from webdataset.shards.expand import expand_urls  # noqa: PLC0415  loaded when there is something to expand
    from webdataset.shards.urls import find_literal  # noqa: PLC0415  likewise

    # the shell's wildcards give names of files, and files may be called like commands
    literal = find_literal(argument)
    if argument.lower().endswith(_SPECS):
        return _expand_spec(literal or argument, split)
    if literal is not None:
        return [literal]
    return _check_folder(expand_urls(argument, storage_options=options), folder=argument.endswith("/"))


def _check_folder(urls: list[str], *, folder: bool) -> list[str]:
    """Return what an expression stands for.

    Raises:
        UsageError: a folder of a server that has no lists.
    """
    if folder:
        from webdataset.storage.open_url import find_backend, rewrite_url  # noqa: PLC0415  for folders alone

        for url in urls:
            if url.endswith("/") and find_backend(rewrite_url(url)) == "http":
                raise UsageError(
                    "a web server has no lists of a folder: write the shards' urls out, as in train-{000..099}.tar",
                    url=url,
                )
    return urls


def _is_directory(argument: str) -> bool:
    from webdataset.storage.local_listing import is_folder  # noqa: PLC0415  loaded when there is something to expand

    return "://" not in argument and is_folder(argument)


def _expand_list(name: str, options: Any, split: str | None, depth: int) -> list[str]:
    """Return the shards of a list: one expression a line; empty lines and those that begin with # count nothing.

    A local list may name what the command line may; one from the network is data, and may name urls only.

    Raises:
        UsageError: lists that name each other, or a list from the network that is too long.
        UnsafeSpec: a list from the network that names a command or local file, without full trust.
    """
    if depth >= _MOST_NESTED:
        raise UsageError(f"lists of shards name each other, more than {_MOST_NESTED} deep", url=f"@{name}")
    from webdataset.shards.urls import is_from_network  # noqa: PLC0415  for lists alone

    foreign = is_from_network(name)
    lines = [
        line.strip() for line in _read_list(name, options, most=_MOST_LIST_BYTES if foreign else None).splitlines()
    ]
    wanted = [line for line in lines if line and not line.startswith("#")]
    if not foreign:
        return [url for line in wanted for url in _expand(line, options, split, depth + 1)]
    found: list[str] = []
    for line in wanted:
        found += _expand_foreign(line, name, options, split, depth + 1)
        if len(found) > _MOST_LISTED:
            raise UsageError(f"a list from the network stands for more than {_MOST_LISTED} shards: split it", url=name)
    return found


def _read_list(name: str, options: object, *, most: int | None) -> str:
    """Return the text of a list.

    Raises:
        UsageError: more than ``most`` bytes.
    """
    if name == "-":
        return sys.stdin.read().removeprefix("\ufeff")
    from webdataset.storage.open_url import resolve_url  # noqa: PLC0415  for lists alone

    pieces: list[bytes] = []
    size = 0
    with resolve_url(name, storage_options=options).open() as stream:
        while piece := stream.read(1 << 20):
            pieces.append(piece)
            size += len(piece)
            if most is not None and size > most:
                raise UsageError(f"a list of more than {most >> 20} MiB is not read from the network: split it, or "
                                 "download it and name the file", url=name)  # fmt: skip
    # editors of Windows write a mark of three bytes in front
    return b"".join(pieces).decode("utf-8-sig", "surrogateescape")


def _expand_foreign(line: str, document: str, options: object, split: str | None, depth: int) -> list[str]:
    """Return the shards of a line of a list from the network: relative to the list, each url checked.

    Raises:
        UnsafeSpec: a command, a local file, or a variable of this environment, without full trust.
        UsageError: a relative name in a list that came through a command.
    """
    from webdataset.shards.expand import expand_braces, expand_name, split_urls  # noqa: PLC0415  for lists alone
    from webdataset.shards.urls import check_document_url  # noqa: PLC0415  likewise

    if line.startswith("@"):
        return _expand_list(_join_foreign(line[1:], document), options, split, depth)
    if line.lower().endswith(_SPECS):
        return _expand_spec(_join_foreign(line, document), split)
    if "${" in line:
        raise UnsafeSpec(f"a list from the network takes nothing from the environment: {line[:200]!r}", url=document)
    names = [_join_foreign(name, document) for part in split_urls(line) for name in expand_braces(part, _MOST_LISTED)]
    found = []
    for name in names:
        urls = [check_document_url(url, document) for url in expand_name(name, storage_options=options)]
        found += _check_folder(urls, folder=name.endswith("/"))
    return found


def _join_foreign(name: str, document: str) -> str:
    """Return what a list from the network names, joined to its folder and checked."""
    from webdataset.shards.urls import check_document_url, is_url, join_url, parent_folder  # noqa: PLC0415  likewise

    folder = parent_folder(document)
    if folder is None and not is_url(name):
        raise UsageError(
            f"{name[:200]!r} is relative, and a list that a command writes has no folder: write COMMAND | wds ... @-",
            url=document,
        )
    joined = join_url(folder, name)
    # joining drops the slash that makes a name a folder's
    return check_document_url(joined + "/" * (name.endswith("/") and not joined.endswith("/")), document)


def _list_directory(name: str) -> list[str]:
    """Return the shards in and below a directory, sorted by their paths.

    Raises:
        NoShards: there are none.
        SourceError: a folder in it cannot be listed.
    """
    from webdataset.shards.urls import SHARD_ENDINGS, literal_path  # noqa: PLC0415  likewise
    from webdataset.storage.local_listing import walk_folder  # noqa: PLC0415  loaded when there is something to expand

    found = [
        literal_path(str(Path(folder, file)))
        for folder, files in walk_folder(name)
        for file in files
        if file.lower().endswith(SHARD_ENDINGS) and not file.startswith(".")
    ]
    if not found:
        raise NoShards(f"the directory holds no shards: no name ends with {', '.join(SHARD_ENDINGS)}", url=name)
    return sorted(found)


def _expand_spec(name: str, split: str | None) -> list[str]:
    """Return the shards of a dataset specification or wids index, each once, in the order in which it names them."""
    return list(dict.fromkeys(list_shards(load_split(name, split)[1])))


def load_split(name: str, split: str | None) -> "tuple[str, Mix]":
    """Return a split of a dataset specification, and its name.

    Args:
        name: path or url of the specification.
        split: name of the split; None for the only one, or the one called ``train``.

    Raises:
        UsageError: there is no such split.
        SpecError: mistakes in the specification.
    """
    from webdataset.shards.specs.load import load_spec  # noqa: PLC0415  for specifications alone

    splits = load_spec(name).splits
    chosen = split or ("train" if "train" in splits or len(splits) != 1 else next(iter(splits)))
    if chosen not in splits:
        raise UsageError(f"the specification has no split {chosen!r}: pass --split {'|'.join(splits)}", url=name)
    return chosen, splits[chosen]


def list_shards(mix: "Mix") -> Iterator[str]:
    """Yield the shards of all sources of a mix.

    Args:
        mix: of a dataset specification.
    """
    for source in mix.sources:
        if source.mix is not None:
            yield from list_shards(source.mix)
        else:
            yield from source.urls()


def storage_options_of(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--storage-profile`` and ``--split`` to a command.

    Args:
        command: takes ``storage_profile`` and ``split``.
    """
    split = click.option("--split", metavar="NAME", help="The split of a dataset specification.")
    profile = click.option("--storage-profile", metavar="NAME", help="The profile that urls are opened with.")
    return profile(split(command))


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument ``SHARDS...`` and the options of inputs; it gets ``inputs``.

    Args:
        command: takes ``inputs`` (:class:`Inputs`) as keyword.
    """

    @functools.wraps(command)
    def call(
        *arguments: Any, shards: tuple[str, ...], storage_profile: str | None, split: str | None, **rest: Any
    ) -> Any:
        inputs = expand_inputs(shards, storage_profile=storage_profile, split=split)
        return command(*arguments, inputs=inputs, **rest)

    return storage_options_of(click.argument("shards", nargs=-1, required=True, metavar="SHARDS...")(call))
