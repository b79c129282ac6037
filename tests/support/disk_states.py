"""A folder of files as its programs see it, and what of it is on the disk for certain.

:class:`Disk` is changed as by calls of the system, and gives what POSIX allows a power failure to leave:

* of a file, what was written since its last fsync may be there, be zeros under the new length, be cut at a block, or
  be missing; of an overwritten file each block may be the old or the new one;
* of a folder, the changes of names since its last fsync are there up to some point, in their order, as journals of
  ext4 and XFS keep them; folders are independent of each other, but for a rename from one to the other, which is one
  step. So a file that was renamed before it was synced may have its new name and no bytes, and a folder that was made
  is lost with all that is in it until the one above it is synced.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 4096


class UnknownCall(Exception):
    """The program changes files in a way that cannot be replayed."""


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes at their start are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (first, second) in pairs if first != second), min(len(one), len(other)))


@dataclass
class File:
    """A file: what of it is on the disk for certain, and what was done to it since.

    Args:
        durable: its bytes at the last fsync.
        now: its bytes as programs see them.
        lengths: it had since the last fsync.
    """

    durable: bytes = b""
    now: bytearray = field(default_factory=bytearray)
    lengths: list[int] = field(default_factory=list)

    @property
    def dirty(self) -> bool:
        """Whether an fsync would write anything."""
        return bool(self.lengths)

    def write(self, offset: int, content: bytes) -> None:
        """Replace bytes; a gap before them becomes zeros."""
        if content:
            self.now.extend(bytes(max(0, offset - len(self.now))))
            self.now[offset : offset + len(content)] = content
            self.lengths.append(len(self.now))

    def truncate(self, size: int) -> None:
        """Change the length."""
        if size != len(self.now):
            self.now[:] = self.now[:size].ljust(size, b"\0")
            self.lengths.append(size)

    def sync(self) -> None:
        """Bring the bytes to the disk."""
        self.durable = bytes(self.now)
        self.lengths.clear()

    def leave(self, how: str, rng: random.Random) -> bytes:
        """Return what a power failure leaves: ``old``, ``new``, ``zeros``, ``cut``, or a ``mix`` of blocks."""
        old, new = self.durable, bytes(self.now)
        if how == "new" or not self.dirty:
            return new
        if how == "old":
            return old
        if how == "zeros":
            # blocks that were there and are as they were do not become zeros
            return new[: _common(old, new)].ljust(len(new), b"\0")
        if how == "cut":
            blocks = max(1, -(-len(new) // BLOCK))
            size = min(BLOCK * rng.randrange(blocks), len(new)) if blocks > 1 else len(new) // 2
            return new[: max(size, _common(old, new))]
        size = rng.choice([len(old), len(new), *self.lengths])
        pieces = []
        for at in range(0, size, BLOCK):
            choice = new if rng.random() < 0.5 else old
            pieces.append(choice[at : at + BLOCK].ljust(min(BLOCK, size - at), b"\0"))
        return b"".join(pieces)[:size]


@dataclass
class Folder:
    """A folder: its names on the disk for certain, and the changes since; a change is a number and what it sets."""

    durable: dict[str, "Node | None"] = field(default_factory=dict)
    now: dict[str, "Node | None"] = field(default_factory=dict)
    pending: list[tuple[int, dict[str, "Node | None"]]] = field(default_factory=list)

    def change(self, number: int, names: dict[str, "Node | None"]) -> None:
        """Set names, or remove them (None)."""
        self.now.update(names)
        self.pending.append((number, names))

    def sync(self) -> None:
        """Bring the names to the disk."""
        self.durable = dict(self.now)
        self.pending.clear()

    def leave(self, count: int) -> dict[str, "Node | None"]:
        """Return the names after some of the changes."""
        left = dict(self.durable)
        for _, names in self.pending[:count]:
            left.update(names)
        return left


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Node = File | Folder | Link
Tree = dict[str, bytes | Link | None]
"""Relative paths to the bytes of files, to links, and to None for folders."""


class Disk:
    """Replays calls, and says what would be left of them."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.top = self._read(Path(self.root))
        self._changes = 0

    def _read(self, path: Path) -> Folder:
        """Return a folder as it is on the disk; all of it is durable."""
        folder = Folder()
        for each in path.iterdir():
            if each.is_symlink():
                folder.now[each.name] = Link(str(each.readlink()))
            elif each.is_dir():
                folder.now[each.name] = self._read(each)
            else:
                content = each.read_bytes()
                folder.now[each.name] = File(content, bytearray(content))
        folder.sync()
        return folder

    def split(self, path: str) -> tuple[Folder, str] | None:
        """Return the folder of a path and its last part; None where it is not below the root."""
        path = os.path.normpath(os.path.join(self.root, path))
        if not path.startswith(self.root + os.sep):
            return None
        *above, name = os.path.relpath(path, self.root).split(os.sep)
        folder = self.top
        for part in above:
            found = folder.now.get(part)
            if not isinstance(found, Folder):
                raise UnknownCall(f"{path}: {part} is no folder that is known")
            folder = found
        return folder, name

    def find(self, path: str) -> Node | None:
        """Return what is at a path now."""
        if os.path.normpath(path) == self.root:
            return self.top
        place = self.split(path)
        return None if place is None else place[0].now.get(place[1])

    def put(self, path: str, node: Node | None) -> None:
        """Set or remove a name."""
        place = self.split(path)
        if place is not None:
            self._changes += 1
            place[0].change(self._changes, {place[1]: node})

    def rename(self, source: str, target: str) -> None:
        """Move a name, in one step."""
        first, second = self.split(source), self.split(target)
        if first is None or second is None:
            if first is not second:
                raise UnknownCall(f"rename of {source} to {target}, into the folder or out of it")
            return
        self._changes += 1
        node, number = first[0].now[first[1]], self._changes
        if first[0] is second[0]:
            first[0].change(number, {first[1]: None, second[1]: node})
        else:
            first[0].change(number, {first[1]: None})
            second[0].change(number, {second[1]: node})

    def sync(self) -> None:
        """Bring everything to the disk."""
        for node in self.nodes():
            if not isinstance(node, Link):
                node.sync()

    def nodes(self) -> list[Node]:
        """Return all that is, or may come back, below the root."""
        found: dict[int, Node] = {}
        waiting: list[Node] = [self.top]
        while waiting:
            node = waiting.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            if isinstance(node, Folder):
                maps = [node.now, node.durable, *(names for _, names in node.pending)]
                waiting += [each for names in maps for each in names.values() if each is not None]
        return list(found.values())

    def leave(
        self, counts: dict[int, int], how: Callable[[File], str], rng: random.Random
    ) -> tuple[Tree, dict[str, File]]:
        """Return what is left.

        Args:
            counts: identities of folders to how many of their changes are there.
            how: says for a file what of it is there.
            rng: draws.
        """
        tree: Tree = {}
        nodes: dict[str, File] = {}
        contents: dict[int, bytes] = {}

        def add(folder: Folder, above: str) -> None:
            for name, node in folder.leave(counts.get(id(folder), 0)).items():
                if isinstance(node, File):
                    if id(node) not in contents:
                        contents[id(node)] = node.leave(how(node), rng)
                    tree[above + name] = contents[id(node)]
                    nodes[above + name] = node
                elif isinstance(node, Folder):
                    tree[above + name] = None
                    add(node, f"{above}{name}/")
                elif node is not None:
                    tree[above + name] = node

        add(self.top, "")
        return tree, nodes

    def choices(self, samples: int, rng: random.Random) -> Iterator[tuple[str, Tree, dict[str, File]]]:
        """Yield what a power failure may leave now: the extremes, and some that are drawn."""
        nodes = self.nodes()
        folders = [node for node in nodes if isinstance(node, Folder) and node.pending]
        dirty = any(isinstance(node, File) and node.dirty for node in nodes)
        full = {id(folder): len(folder.pending) for folder in folders}
        ways = ["old", "new", "zeros", "cut"] if dirty else ["new"]
        picked: list[tuple[str, dict[int, int], list[str]]] = [("no names", {}, [way]) for way in ways]
        picked += [("all names", full, [way]) for way in ways]
        for number, folder in enumerate(folders if len(folders) > 1 else []):
            alone = {id(folder): len(folder.pending)}
            picked += [(f"names of folder {number}", alone, [way]) for way in ways]
            picked += [(f"names but of folder {number}", {**full, id(folder): 0}, [way]) for way in ways]
        for _ in range(samples if folders or dirty else 0):
            some = {id(folder): rng.randint(0, len(folder.pending)) for folder in folders}
            picked.append(("some names", some, ["old", "new", "zeros", "cut", "mix"]))
        for said, counts, hows in picked:
            counts = self._pair_renames(folders, dict(counts))
            yield f"{said}, data {'/'.join(hows)}", *self.leave(counts, lambda _: rng.choice(hows), rng)

    @staticmethod
    def _pair_renames(folders: list[Folder], counts: dict[int, int]) -> dict[int, int]:
        """Leave out renames between folders of which only one side would be there."""
        while True:
            there = {number for folder in folders for number, _ in folder.pending[: counts.get(id(folder), 0)]}
            broken = None
            for folder in folders:
                missing = [number for number, _ in folder.pending[counts.get(id(folder), 0) :]]
                broken = broken or next((number for number in missing if number in there), None)
            if broken is None:
                return counts
            for folder in folders:
                at = next((at for at, (number, _) in enumerate(folder.pending) if number == broken), None)
                if at is not None:
                    counts[id(folder)] = min(counts.get(id(folder), 0), at)
