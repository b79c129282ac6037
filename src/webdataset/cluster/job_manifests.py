"""Scripts and manifests that run the tasks of a job on a cluster: each holds one ``wds map`` command, and nothing else.

The command takes the number of its task from the scheduler: from the variables of a SLURM array, the index of an
indexed job of Kubernetes, the item of an Argo sequence, or the rank of a SkyPilot node. Tasks need no coordinator, may
be run again at any time, and end with status 75 after SIGTERM, which the retries of each scheduler cover.
"""

import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple

from webdataset.core.errors import UsageError
from webdataset.core.redaction import redact

_GRACE_SECONDS: Final = 120
_RETRIES: Final = 10
_MOST_STEPS: Final = 5000
_NEEDED = ("k8s", "kueue", "argo")


class ClusterJob(NamedTuple):
    """What is printed.

    Args:
        command: ``wds map ...`` as words, without ``--task`` and ``--of``.
        tasks: how many there are.
        name: of the job; lower case letters, digits and dashes.
        image: that has this library and the function; for Kubernetes and Argo.
        queue: of Kueue.
        parallel: tasks that run at a time; None for all.
    """

    command: Sequence[str]
    tasks: int
    name: str = "wds-map"
    image: str | None = None
    queue: str | None = None
    parallel: int | None = None


def format_job(kind: str, job: ClusterJob) -> str:
    """Return a script or manifest.

    Args:
        kind: ``slurm``, ``k8s``, ``kueue``, ``argo`` or ``skypilot``.
        job: what it runs.

    Raises:
        UsageError: something is missing that this scheduler needs, or a word of the command holds a secret.
    """
    for word in job.command:
        if redact(word) != word:
            raise UsageError(f"{redact(word)} holds a secret, which would stand in the script: name a profile instead")
    if kind in _NEEDED and job.image is None:
        raise UsageError(f"--print {kind} needs --image: a container image with webdataset and the function")
    if kind == "kueue" and job.queue is None:
        raise UsageError("--print kueue needs --queue: the name of a local queue")
    return _FORMATS[kind](job)


def _format_slurm(job: ClusterJob) -> str:
    at_once = "" if job.parallel is None else f"%{job.parallel}"
    return "\n".join([
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --array=0-{job.tasks - 1}{at_once}",
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:TERM@{_GRACE_SECONDS}",
        "# the task is taken from the variables of the array; --of may be any number up to that of the outputs",
        f"exec {shlex.join(job.command)}",
        "",
    ])  # fmt: skip


def _format_skypilot(job: ClusterJob) -> str:
    task = '--task "$SKYPILOT_NODE_RANK" --of "$SKYPILOT_NUM_NODES"'
    return _dump({"name": job.name, "num_nodes": job.tasks, "run": f"exec {shlex.join(job.command)} {task}\n"})


def _make_job(job: ClusterJob) -> dict[str, object]:
    # Kubernetes replaces $(NAME) in commands, and $$ by $
    words = [word.replace("$(", "$$(") for word in job.command]
    container = {
        "name": "map",
        "image": job.image,
        "command": [*words, "--task", "$(JOB_COMPLETION_INDEX)", "--of", str(job.tasks)],
    }
    # a node that goes away is no failure of the task
    disruption = {"type": "DisruptionTarget", "status": "True"}
    spec = {
        "completions": job.tasks,
        "parallelism": job.parallel or job.tasks,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": _RETRIES,
        "maxFailedIndexes": job.tasks,
        "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [disruption]}]},
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": _GRACE_SECONDS,
                "containers": [container],
            }
        },
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job.name}, "spec": spec}


def _format_kubernetes(job: ClusterJob) -> str:
    return _dump(_make_job(job))


def _format_kueue(job: ClusterJob) -> str:
    made = _make_job(job)
    # Kueue starts it
    made["spec"] = {"suspend": True, **dict(made["spec"])}  # type: ignore[call-overload]
    made["metadata"] = {"name": job.name, "labels": {"kueue.x-k8s.io/queue-name": job.queue}}
    return _dump(made)


def _format_argo(job: ClusterJob) -> str:
    if job.tasks > _MOST_STEPS:
        raise UsageError(
            f"--of {job.tasks}: Argo keeps at most about {_MOST_STEPS} steps of a workflow; name fewer tasks"
        )
    if any("{{" in word for word in job.command):
        raise UsageError("'{{' in the command would be replaced by Argo: put the job into a script")
    one = {
        "name": "one",
        "inputs": {"parameters": [{"name": "task"}]},
        "retryStrategy": {"limit": _RETRIES, "retryPolicy": "Always"},
        "container": {
            "image": job.image,
            "command": [*job.command, "--task", "{{inputs.parameters.task}}", "--of", str(job.tasks)],
        },
    }
    step = {
        "name": "task",
        "template": "one",
        "arguments": {"parameters": [{"name": "task", "value": "{{item}}"}]},
        "withSequence": {"count": str(job.tasks)},
    }
    spec: dict[str, object] = {"entrypoint": "all", "templates": [{"name": "all", "steps": [[step]]}, one]}
    if job.parallel is not None:
        spec["parallelism"] = job.parallel
    metadata = {"generateName": f"{job.name}-"}
    return _dump({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": metadata, "spec": spec})


def _dump(content: dict[str, object]) -> str:
    import yaml  # noqa: PLC0415  for what is printed alone

    text: str = yaml.safe_dump(content, sort_keys=False, width=1000)
    return text


_FORMATS: Final = {
    "slurm": _format_slurm,
    "k8s": _format_kubernetes,
    "kueue": _format_kueue,
    "argo": _format_argo,
    "skypilot": _format_skypilot,
}
SCHEDULERS: Final = tuple(_FORMATS)
"""What :func:`format_job` writes for."""
