"""The figures of the package's structure: sizes, names, imports.

``structure.py [ROOT]`` prints one line a figure for ``src/webdataset`` under ROOT (default: this repository), and fails
if one is above its budget. Budgets only fall: lower them when a figure has fallen.
"""

import ast
import collections
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from laws import FUNCTIONS, code_lines, docstring_lines

PACKAGE = "webdataset"
COMPATIBILITY = re.compile(
    "autodecode|cache|cborsiterators|compat|config|extradatasets|filters|gopen|handlers|mix|pipeline|pytorch|"
    "shardlists|specs|tariterators|tenbin|utils|writer|bench|downloader|multi|typecheck|__main__"
)
# read and put are imperatives too, and methods of streams and queues
PARTICIPLE = re.compile(
    "said|told|found|kept|held|shut|sent|written|drawn|taken|given|made|lent|begun|gone|known|met|shown|built|"
    "(?!seed|need|feed|embed|speed)..+ed"
)
PASSAGE = 6
# imports within functions that may close a circle, and where they stand
LATE_EDGES = {
    ("webdataset.flow.pipeline", "webdataset.flow.elastic_pipeline"): "DataPipeline.elastic()",
    ("webdataset.storage.s3_profile", "webdataset.storage.profile_registry"): "Profile.__reduce__",
}
BUDGETS: dict[str, float] = {
    "longest module, code lines": 400,
    "longest module, lines": 600,
    "modules under 40 code lines": 12,
    "modules with one importer, percent": 21,
    "circles of imports": 0,
    "late imports named in vain": 0,
    "functions named by a participle": 37,
    "class names used twice": 2,
    "Any": 1639,
    "passages that stand twice": 10,
}


class Module:
    """One source file.

    Args:
        source: the folder of the package.
        path: the file.
    """

    def __init__(self, source: Path, path: Path) -> None:
        self.path = path
        self.parts = path.relative_to(source).with_suffix("").parts
        names = self.parts[:-1] if self.parts[-1] == "__init__" else self.parts
        self.name = ".".join((PACKAGE, *names))
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.docstrings = len(docstring_lines(self.tree))
        self.code = code_lines(self.text, self.tree)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function and method."""
        return (node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS))

    def is_ordinary(self) -> bool:
        """Tell whether it is neither a compatibility module nor a package's head."""
        return self.parts[-1] != "__init__" and not (len(self.parts) == 1 and COMPATIBILITY.fullmatch(self.parts[0]))

    def is_program(self) -> bool:
        """Tell whether it is part of a program: each of its modules is imported once, where it begins."""
        return self.parts[0] in {"cli", "viewer"}

    def imported(self, modules: dict[str, "Module"], *, late: bool = True) -> set[str]:
        """Return the names of modules that it imports, those for types alone not, those in functions if ``late``."""
        found = set()
        if not late:
            for function in self.functions():
                for node in ast.walk(function):
                    node.__dict__["late"] = True
        for node in ast.walk(self.tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                for each in node.body:
                    each.__dict__["typing_only"] = True
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.ImportFrom) or node.__dict__.get("typing_only"):
                continue
            if node.__dict__.get("late") and not late:
                continue
            base = node.module or ""
            if node.level:
                up = self.name.split(".") if self.parts[-1] == "__init__" else self.name.split(".")[:-1]
                base = ".".join([*up[: len(up) - node.level + 1], *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                if name in modules and name != self.name:
                    found.add(name)
        return found


def is_participle(name: str) -> bool:
    """Tell whether a function's name ends in a past participle, predicates left out."""
    if name.startswith(("is_", "has_")):
        return False
    return PARTICIPLE.fullmatch(name.rstrip("_").rpartition("_")[2]) is not None


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return found


def without_late_edges(graph: dict[str, set[str]], by_name: dict[str, Module]) -> tuple[dict[str, set[str]], set[str]]:
    """Return the imports without those of ``LATE_EDGES``, and the places named there that need not, or must not, be."""
    open_graph = {name: set(imports) for name, imports in graph.items()}
    vain = set()
    for (importer, imported), place in LATE_EDGES.items():
        if importer not in graph:
            continue
        if imported in graph.get(importer, ()) and imported not in by_name[importer].imported(by_name, late=False):
            open_graph[importer].discard(imported)
        else:
            vain.add(place)
    return open_graph, vain


def repeated_passages(modules: list[Module]) -> int:
    """Return how many passages of six or more code lines stand somewhere else as well, imports left out."""
    windows: collections.Counter[tuple[str, ...]] = collections.Counter()
    lines_of = {}
    for module in modules:
        texts = module.text.splitlines()
        found = [n for n in ast.walk(module.tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        imports = {line for n in found for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}
        lines_of[module.name] = [texts[n - 1].strip() for n in sorted(module.code) if n not in imports]
    for lines in lines_of.values():
        windows.update({tuple(lines[at : at + PASSAGE]) for at in range(len(lines) - PASSAGE + 1)})
    count = 0
    for lines in lines_of.values():
        inside = False
        for at in range(len(lines) - PASSAGE + 1):
            again = windows[tuple(lines[at : at + PASSAGE])] > 1
            count += again and not inside
            inside = again
    return count // 2


def shared_class_names(modules: list[Module]) -> dict[str, int]:
    """Return the public class names that several modules use, and how often."""
    names = collections.Counter(
        node.name
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in names.items() if count > 1}


def figures(root: Path) -> dict[str, float]:
    """Return the figures by name.

    Args:
        root: the repository.
    """
    source = root / "src" / PACKAGE
    everything = [Module(source, path) for path in sorted(source.rglob("*.py"))]
    modules = [module for module in everything if module.parts[0] != "testing"]
    ordinary = [module for module in modules if module.is_ordinary()]
    by_name = {module.name: module for module in everything}
    graph = {module.name: module.imported(by_name) for module in everything}
    without_late, vain = without_late_edges(graph, by_name)
    # a command is thin, and the first importer of its engine: neither counts
    importers = collections.Counter(name for m in modules if not m.is_program() for name in graph[m.name])
    functions = [function for module in modules for function in module.functions()]
    code = sum(len(module.code) for module in modules)
    anys = sum(len(re.findall(r"\bAny\b", module.text)) for module in modules)
    alone = sum(importers[module.name] == 1 for module in ordinary)
    small = [module for module in ordinary if len(module.code) < 40 and not module.is_program()]
    return {
        "files (without testing)": len(modules),
        "files": len(everything),
        "code lines": code,
        "docstring lines": sum(module.docstrings for module in modules),
        "median module, code lines": statistics.median(len(module.code) for module in ordinary),
        "median module, lines": statistics.median(module.text.count("\n") for module in ordinary),
        "longest module, code lines": max(len(module.code) for module in ordinary),
        "longest module, lines": max(module.text.count("\n") for module in ordinary),
        "ordinary modules": len(ordinary),
        "modules under 40 code lines": len(small),
        "modules with one importer": alone,
        "modules with one importer, percent": round(100 * alone / len(ordinary), 1),
        "circles of imports": len(circles(without_late)),
        "late imports named in vain": len(vain),
        "functions": len(functions),
        "functions named by a participle": sum(is_participle(f.name) for f in functions),
        "class names used twice": len(shared_class_names(modules)),
        "Any": anys,
        "Any in 1000 code lines": round(1000 * anys / code),
        "passages that stand twice": repeated_passages(modules),
    }


def main() -> None:
    """Print the figures; fail if one is above its budget."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    over = []
    for name, figure in figures(root).items():
        budget = BUDGETS.get(name, figure)
        print(f"{name}: {figure}" + (f" (at most {budget})" if name in BUDGETS else ""))
        over += [name] if figure > budget else []
    sys.exit("above the budget: " + ", ".join(over) if over else 0)


if __name__ == "__main__":
    main()
