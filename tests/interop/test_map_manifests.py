"""What ``wds map --print`` prints, checked by the schemas and linters of those that take it."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.command import run_wds

TESTS = Path(__file__).parents[1]


def show(kind, *more):
    """What is printed for a job of three tasks, with a word that shells take apart."""
    job = ("map", "support.mapped:tag", "in/*.tar", "-o", "out/", "--param", "mark=a b'$(date)`id`")
    return run_wds(*job, "--print", kind, "--of", "3", *more, PYTHONPATH=str(TESTS)).stdout.decode()


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("kind", ["k8s", "kueue"])
def test_kubernetes_knows_every_name(kind, version):
    """The strict schemas of two versions of Kubernetes take the manifest, and refuse it with a name misspelt."""
    validator = pytest.importorskip("kubernetes_validate")
    queue = ["--queue", "research"] if kind == "kueue" else []
    made = yaml.safe_load(show(kind, "--image", "registry/image:1", *queue))
    assert validator.validate(made, version, strict=True) == version
    wrong = copy.deepcopy(made)
    wrong["spec"]["completionsMode"] = wrong["spec"].pop("completionMode")
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, version, strict=True)


def test_argo_knows_every_name():
    """Hera's models of Argo hold the whole workflow: they drop names that Argo does not know."""
    models = pytest.importorskip("hera.workflows.models")
    made = yaml.safe_load(show("argo", "--image", "registry/image:1", "--parallel", "2"))

    def read(workflow):
        found = models.Workflow.model_validate(workflow)
        return found.model_dump(by_alias=True, exclude_none=True, exclude_unset=True, mode="json")

    assert read(made) == made
    wrong = copy.deepcopy(made)
    wrong["spec"]["entryPoint"] = wrong["spec"].pop("entrypoint")
    assert read(wrong) != wrong


@pytest.mark.parametrize("kind", ["slurm", "skypilot"])
def test_shellcheck_finds_nothing(kind):
    """The linter of shell scripts has no error and no warning; it runs, for it finds a mistake that is added."""
    program = Path(sys.executable).with_name("shellcheck")
    if not program.exists():
        pytest.skip("shellcheck is not installed")
    text = show(kind)
    script = f"#!/bin/bash\n{yaml.safe_load(text)['run']}" if kind == "skypilot" else text

    def check(content, severity):
        command = [str(program), f"--severity={severity}", "-"]
        return subprocess.run(command, input=content, text=True, capture_output=True, check=False)

    # that single quotes expand nothing is what they are for, and only worth a note
    done = check(script, "warning")
    assert (done.returncode, done.stdout) == (0, "")
    assert "SC2050" in check(f"{script}\nif [ a = b ]; then exit; fi", "warning").stdout
