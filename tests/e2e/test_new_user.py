"""The first hour of a new user: install, the first pages, shards of one's own, a training that is killed and resumed.

Commands and code are taken from README and the pages, in a fresh environment, so that a page that no longer says what
works fails here.
"""

import ast
import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
LOADING = ROOT / "docs" / "loading.md"
NOT_CLONED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "demo-data", "tests", "out")
NOWHERE = "http://127.0.0.1:9"
TRAIN = """
import json, os, sys
from pathlib import Path
import numpy as np
{imports}

{dataset}

def train():
    path = Path("checkpoint.json")
    saved = json.loads(path.read_text()) if path.exists() else dict(seen=[], weight=0.0, state=None)
    with {loader} as loader:
        if saved["state"] is not None:
            loader.load_state_dict(saved["state"])
        for batch in loader:
            sys.stdin.readline()  # a step lasts until the test says that it is over
            numbers = [int(number) for number in {numbers}]
            saved["seen"] += numbers
            saved["weight"] += 0.01 * (np.mean(numbers) - saved["weight"])
            saved["state"] = loader.state_dict()
            Path("checkpoint.new").write_text(json.dumps(saved))
            os.replace("checkpoint.new", path)
            print(len(saved["seen"]), flush=True)

if __name__ == "__main__":
    train()
"""


def blocks(page, torch):
    """Return the Python blocks of a page, each at its own line, but for those that cannot run."""
    found = runpy.run_path(str(ROOT / "tests" / "docs" / "conftest.py"))["blocks"](page)
    return ["\n" * line + code for line, mark, code in found if not mark or (mark == "torch" and torch)]


def session(codes):
    """Return what runs blocks one after the other, as typed into one session."""
    return "".join(f"exec({code!r})\n" for code in codes)


def install_line():
    """Return the command by which README says to install a checkout."""
    found = re.search(r"^ {4}(pip install '?\.\[.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "README has no line that installs a checkout"
    return shlex.split(found[1], comments=True)


def environment(place):
    """Return the variables of somebody who has activated a new environment and set nothing else."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("WDS_", "PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(place)}


def run(*words, **options):
    """Run a command to its end, successfully; return what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{shlex.join(map(str, words))}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def install(place, torch):
    """Make an environment and install a copy of this checkout into it, by README's line.

    Args:
        place: an empty folder.
        torch: torch can be had for this Python at once; without it the line goes without that extra.

    Returns:
        The variables under which its programs run.
    """
    clone, home = place / "clone", place / "env"
    shutil.copytree(ROOT, clone, ignore=NOT_CLONED)
    run(sys.executable, "-m", "venv", home)
    variables = environment(home)
    line = [word if torch else word.replace("torch,", "") for word in install_line()]
    run(*line, cwd=clone, env={**variables, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")})
    variables |= {"http_proxy": NOWHERE, "https_proxy": NOWHERE}
    shutil.rmtree(clone)
    where = run("python", "-c", "import webdataset; print(webdataset.__file__)", cwd=place, env=variables)
    assert Path(where.strip()).is_relative_to(home.resolve())
    return variables


def statements(page, number):
    """Return the statements of a page's Python block."""
    return ast.parse(blocks(page, torch=True)[number]).body


def text_of(nodes):
    """Return statements as Python."""
    return "\n".join(map(ast.unparse, nodes))


def imports(nodes):
    """Return the imports among statements."""
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def writes(nodes):
    """Return the statement that writes shards."""
    return next(node for node in nodes if isinstance(node, ast.With) and "ShardWriter" in ast.unparse(node))


def readme_training():
    """Return programs that write the shards of README, and train on them with processes, as it says."""
    first = statements(README, 0)
    made = next(
        node
        for number in range(len(blocks(README, torch=True)))
        for node in statements(README, number)
        if isinstance(node, ast.FunctionDef) and node.name == "training"
    )
    (loader,) = re.findall(r"`(wds\.Loader\(dataset, [^`]*mode=\"processes\"\))`", README.read_text(encoding="utf-8"))
    dataset = f"{text_of([made])}\ndataset = training()"
    numbers = "batch['__key__']"
    return (
        text_of([*imports(first), writes(first)]),
        TRAIN.format(imports=text_of(imports(first)), dataset=dataset, loader=loader, numbers=numbers),
        1000,
    )


def loading_training():
    """Return programs that write the shards of the page on loading, and train on them with threads, as it says."""
    first = statements(LOADING, 0)
    made = next(node for node in first if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "dataset")
    loop = next(node for node in first if isinstance(node, ast.With) and "Loader" in ast.unparse(node.items[0]))
    loader = ast.unparse(loop.items[0].context_expr)
    names = text_of(imports(first))
    return (
        text_of([*imports(first), writes(first)]),
        TRAIN.format(imports=names, dataset=text_of([made]), loader=loader, numbers="batch[1]"),
        400,
    )


def checkpoint(folder):
    """Return what a training has saved."""
    return json.loads((folder / "checkpoint.json").read_text())


def kill_in_the_middle(folder, variables, steps):
    """Start a training, let it take some steps, and kill it while it is in the next one."""
    job = subprocess.Popen(
        ["python", "train.py"], cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with job:
        for _ in range(steps):
            job.stdin.write("\n")
            job.stdin.flush()
            assert job.stdout.readline(), "the training ended by itself"
        os.kill(job.pid, signal.SIGKILL)
        job.stdout.read()  # ends when the workers, which hold it too, have ended
    assert job.returncode == -signal.SIGKILL


def train(place, variables, programs):
    """Train once without and once with a kill in the middle, and compare.

    Args:
        place: an empty folder.
        variables: those of the environment.
        programs: what writes the shards, what trains, and the number of samples.
    """
    writer, trainer, count = programs
    for name in ("whole", "killed"):
        (place / name).mkdir(parents=True)
        (place / name / "write.py").write_text(writer)
        (place / name / "train.py").write_text(trainer)
        run("python", "write.py", cwd=place / name, env=variables)
    printed = run("python", "train.py", cwd=place / "whole", env=variables, stdin=subprocess.DEVNULL)
    steps = len(printed.split())
    assert steps > 8
    kill_in_the_middle(place / "killed", variables, steps // 2)
    before = checkpoint(place / "killed")["seen"]
    assert 0 < len(before) < count
    run("python", "train.py", cwd=place / "killed", env=variables, stdin=subprocess.DEVNULL)
    whole, killed = checkpoint(place / "whole"), checkpoint(place / "killed")
    assert sorted(killed["seen"]) == list(range(count))
    assert (killed["seen"], killed["weight"]) == (whole["seen"], whole["weight"])


@pytest.mark.slow
@pytest.mark.timeout(390)
def test_a_new_user_gets_from_readme_to_a_resumed_training(tmp_path):
    """README's install line, README's and the quick start's code, and trainings that go on after SIGKILL."""
    torch = importlib.util.find_spec("torch") is not None
    variables = install(tmp_path, torch)
    for page in (README, ROOT / "docs" / "quickstart.md"):
        folder = tmp_path / page.stem
        folder.mkdir()
        run("python", "-", cwd=folder, env=variables, input=session(blocks(page, torch)))
    train(tmp_path / "processes", variables, readme_training())
    train(tmp_path / "threads", variables, loading_training())
