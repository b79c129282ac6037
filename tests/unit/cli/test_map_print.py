"""``wds map --print``: what is printed runs the very tasks, and together they make what one process makes."""

import os
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

import webdataset as wds
from support import mapped
from support.command import SRC, WDS, command_environment, run_wds
from support.mapped import make_shards, read_outputs

TESTS = Path(__file__).parents[2]
TASKS = 3
ODD = "a b'$(date)`id`"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Inputs, what one process makes of them, and the words of a command with a word that shells take apart."""
    make_shards(tmp_path / "in", [7, 0, 9, 4, 5])
    wds.map_shards(mapped.tag, f"{tmp_path}/in/*.tar", f"{tmp_path}/serial/", params={"mark": ODD})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SRC), str(TESTS)]))
    words = ["map", "support.mapped:tag", f"{tmp_path}/in/*.tar", "-o", f"{tmp_path}/out/", "--param", f"mark={ODD}"]
    # the programs are started by the name `wds`
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "wds"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, WDS))} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return tmp_path, words


def show(words, *more):
    """What is printed."""
    return run_wds(*words, *map(str, more), PYTHONPATH=os.environ["PYTHONPATH"]).stdout.decode()


def check_outputs(folder):
    """The tasks made what one process made."""
    made, expected = read_outputs(folder / "out"), read_outputs(folder / "serial")
    assert {name: content for name, content in made.items() if name.endswith(".tar")} == {
        name: content for name, content in expected.items() if name.endswith(".tar")
    }
    assert len([name for name in made if name.endswith(".receipt.json")]) == 5


def run_script(text, **variables):
    """Run a script as a scheduler does."""
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    subprocess.run(["bash"], input=text.encode(), env={**command_environment(), **os.environ, **variables}, check=True)


@pytest.mark.once
@pytest.mark.parametrize(("first", "step"), [(0, 1), (5, 2)])
def test_slurm(job, first, step):
    """The script, run once for each number of the array; also of an array with an offset and a step."""
    folder, words = job
    text = show(words, "--print", "slurm", "--of", TASKS, "--parallel", 2)
    assert text.startswith("#!/bin/bash\n#SBATCH ")
    assert "#SBATCH --array=0-2%2\n" in text
    assert "--of" not in text.splitlines()[-1]
    for number in range(TASKS):
        run_script(
            text,
            SLURM_ARRAY_TASK_ID=str(first + step * number),
            SLURM_ARRAY_TASK_COUNT=str(TASKS),
            SLURM_ARRAY_TASK_MIN=str(first),
            SLURM_ARRAY_TASK_STEP=str(step),
        )
    check_outputs(folder)


def test_skypilot(job):
    """The task of each node, by its rank."""
    folder, words = job
    task = yaml.safe_load(show(words, "--print=skypilot", f"--of={TASKS}"))
    assert set(task) == {"name", "num_nodes", "run"}
    for rank in range(task["num_nodes"]):
        run_script(task["run"], SKYPILOT_NODE_RANK=str(rank), SKYPILOT_NUM_NODES=str(TASKS))
    check_outputs(folder)


def expand(word, variables):
    """A word of a container's command, as Kubernetes expands it."""
    parts = word.split("$$")
    for name, value in variables.items():
        parts = [part.replace(f"$({name})", value) for part in parts]
    return "$".join(parts)


@pytest.mark.once
@pytest.mark.parametrize("kind", ["k8s", "kueue"])
def test_kubernetes(job, kind):
    """Only names that Kubernetes knows; the command of each index."""
    folder, words = job
    more = ["--queue", "research"] if kind == "kueue" else []
    made = yaml.safe_load(show(words, "--print", kind, "--of", TASKS, "--image", "registry/image:1", *more))
    assert set(made) == {"apiVersion", "kind", "metadata", "spec"}
    spec = made["spec"]
    assert set(spec) - {"suspend"} == {
        "completions", "parallelism", "completionMode", "backoffLimitPerIndex", "maxFailedIndexes", "podFailurePolicy",
        "template",
    }  # fmt: skip
    assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert (spec.get("suspend"), made["metadata"].get("labels")) == (
        (True, {"kueue.x-k8s.io/queue-name": "research"}) if kind == "kueue" else (None, None)
    )
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["restartPolicy"], container["image"], spec["completionMode"]) == (
        "Never",
        "registry/image:1",
        "Indexed",
    )
    for index in range(spec["completions"]):
        command = [expand(word, {"JOB_COMPLETION_INDEX": str(index)}) for word in container["command"]]
        subprocess.run(command, check=True, env={**command_environment(), **os.environ})
    check_outputs(folder)


def test_argo(job):
    """The command of each item of the sequence."""
    folder, words = job
    made = yaml.safe_load(show(words, "--print", "argo", "--of", TASKS, "--image", "registry/image:1", "--parallel", 2))
    assert (made["kind"], made["spec"]["parallelism"]) == ("Workflow", 2)
    templates = {template["name"]: template for template in made["spec"]["templates"]}
    ((step,),) = templates[made["spec"]["entrypoint"]]["steps"]
    one = templates[step["template"]]
    for item in range(int(step["withSequence"]["count"])):
        command = [word.replace("{{inputs.parameters.task}}", str(item)) for word in one["container"]["command"]]
        subprocess.run(command, check=True, env={**command_environment(), **os.environ})
    check_outputs(folder)


@pytest.mark.once
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--print", "slurm"], "--print needs --of N"),
        (["--print", "slurm", "--of", "3", "--task", "1"], "no --task"),
        (["--print", "k8s", "--of", "3"], "needs --image"),
        (["--print", "kueue", "--of", "3", "--image", "x"], "needs --queue"),
        (["--print", "argo", "--of", "9000", "--image", "x"], "Argo keeps at most"),
        (["--print", "argo", "--of", "3", "--image", "x", "--param", "mark={{item}}"], "replaced by Argo"),
        (["--print", "slurm", "--of", "3", "--manifest", "http://me:secretword@host/x"], "name a profile"),
        (["--print", "pbs", "--of", "3"], "is not one of"),
    ],
)
def test_what_cannot_be_printed(job, more, said):
    """Nothing is made, nothing is printed, and the error says what is missing."""
    folder, words = job
    done = run_wds(*words, *more, status=2, PYTHONPATH=os.environ["PYTHONPATH"])
    assert said in " ".join(done.stderr.decode().split())
    assert "secretword" not in str(done.stderr) + str(done.stdout)
    assert not (folder / "out").exists()
    assert shutil.which("bash")
