"""The figures of the structure: a small package with one of each fault is measured right, and budgets are kept."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "structure.py"
PASSAGE = "".join(f"    value{number} = compute({number})\n" for number in range(6))
FILES = {
    "__init__.py": '"""A package."""\n',
    "core/__init__.py": '"""A folder."""\n',
    "core/a.py": (
        '"""A module.\n\nTwo more lines.\n"""\n\nfrom webdataset.core.b import Shared\n\n# why\nvalue = Shared\n'
    ),
    "core/b.py": (
        '"""Another."""\n\n\nclass Shared:\n    """One."""\n\n    def opened(self):\n'
        "        from webdataset.core import a\n\n        return a\n"
    ),
    "core/c.py": f"class Shared: ...\n\ndef open_first(x: Any) -> Any:\n{PASSAGE}\n",
    "core/d.py": f"class _Shared: ...\n\ndef embed():\n{PASSAGE}\n",
    "core/big.py": '"""Long."""\n' + "".join(f"n{number} = {number}\n" for number in range(40)),
    "cli/ls.py": '"""A command, and its engine\'s only importer."""\n\nfrom webdataset.core import c\n\nc\n',
    "config.py": '"""A compatibility module, which is not counted as small."""\n',
    "testing/e.py": "def held(): ...\nclass Shared: ...\n",
}


def measure(root: Path) -> tuple[dict[str, float], str]:
    """The figures that the script prints for a repository, and how it ends."""
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(root)], capture_output=True, text=True, check=False, timeout=60
    )
    lines = dict(line.split(": ", 1) for line in ended.stdout.splitlines())
    return {name: float(text.split()[0]) for name, text in lines.items()}, ended.stderr if ended.returncode else ""


@pytest.fixture
def repository(tmp_path):
    """A repository of the small package."""
    for name, text in FILES.items():
        path = tmp_path / "src" / "webdataset" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_figures(repository):
    """Each figure counts what it says; testing and heads of packages count where they should."""
    found, failure = measure(repository)
    assert failure.strip() == "above the budget: modules with one importer, percent, circles of imports"
    assert found["files (without testing)"] == 9
    assert found["files"] == 10
    assert found["ordinary modules"] == 6
    assert found["modules under 40 code lines"] == 4
    assert found["longest module, code lines"] == 40
    assert found["docstring lines"] == 11
    assert found["circles of imports"] == 1
    assert found["modules with one importer"] == 2
    assert found["functions"] == 3
    assert found["functions named by a participle"] == 1
    assert found["class names used twice"] == 1
    assert found["Any"] == 2
    assert found["passages that stand twice"] == 1


@pytest.mark.parametrize(("late", "circles", "vain"), [(True, 1, 0), (False, 2, 1)])
def test_a_late_import_that_is_named_closes_no_circle(repository, late, circles, vain):
    """It counts where it stands outside of a function, and its name is then reported."""
    flow = repository / "src" / "webdataset" / "flow"
    flow.mkdir()
    imported = "from webdataset.flow.elastic_pipeline import Elastic\n"
    (flow / "pipeline.py").write_text(f"def elastic():\n    {imported}" if late else imported)
    (flow / "elastic_pipeline.py").write_text("from webdataset.flow.pipeline import elastic\n\nElastic = elastic\n")
    found, _ = measure(repository)
    assert [found["circles of imports"], found["late imports named in vain"]] == [circles, vain]


def test_a_budget_that_is_passed_fails(repository):
    """The figure is named."""
    text = "".join(f"def opened_{number}_closed(): ...\n" for number in range(200))
    (repository / "src" / "webdataset" / "core" / "many.py").write_text(text)
    assert "functions named by a participle" in measure(repository)[1]
