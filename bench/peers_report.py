"""The answers of ``peers_speed.py`` as tables in Markdown."""

from collections.abc import Mapping
from typing import Any

from peers_child import TRAININGS, WAYS
from peers_damage import CASES

HEADINGS = {
    "cut": "cut between members (tar), to 3/5 (others)",
    "header": "one bit of a header or of offsets, four runs",
    "payload": "one bit of the content",
    "interleaved": "members of two samples take turns",
}


# What the error of a process begins with that ended, or that gave no answer.
GONE = ("hangs", "dies")


def number(answer: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Write a figure and how it compares with this library's."""
    if "left_out" in answer:
        return f"left out: {answer['left_out']}"
    speed = answer["samples_a_cpu_second"]
    factor = speed / ours["samples_a_cpu_second"] if "samples_a_cpu_second" in ours else None
    return f"{speed:,.0f}" + ("" if factor is None else f" ({factor:.2g})")


def rank(judged: Mapping[str, Any]) -> int:
    """Order judgements: raised, not affected, dead or hanging, lost in silence, wrong in silence."""
    if str(judged["error"]).startswith(GONE):
        return 2
    if judged["half"] or judged["changed"]:
        return 4
    if judged["error"]:
        return 0
    return 3 if judged["lost"] else 1


def told(judged: Mapping[str, Any]) -> str:
    """Say what came of one damaged shard."""
    error = judged["error"]
    wrong = [f"{judged[name]} {name}" for name in ("half", "changed") if judged[name]]
    if str(error).startswith(GONE):
        return f"**{error}**"
    if error:
        name = str(error).partition(":")[0]
        return f"raises `{name}`" + (f", after **{', '.join(wrong)}**" if wrong else "")
    if judged["lost"] or wrong:
        return "**silent: " + ", ".join([f"{judged['lost']} lost", *wrong]) + "**"
    return "not affected"


def outcome(runs: list[Mapping[str, Any]] | None) -> str:
    """Say in a cell what came of one kind of damage: the worst run, and in how many of them an error was raised."""
    if not runs:
        return "-"
    worst = max(runs, key=rank)
    raised = sum(rank(each) == 0 for each in runs)
    return told(worst) + (f"; {raised} of {len(runs)} raise" if len(runs) > 1 else "")


def lines(rows: list[list[str]]) -> list[str]:
    """Write rows, the first of which is the heading, as lines of a table."""
    return ["| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]


def tables(kept: Mapping[str, Any]) -> str:
    """Return the tables with versions, date and machine."""
    raw, damage, train = kept["raw"], kept["damage"], kept["train"]
    speeds = [["samples a CPU second (this library = 1)", *raw, "converts first"]]
    for name, way in WAYS.items():
        if way.raw and name in kept["versions"]:
            cells = [number(answers[name], answers["ours"]) for answers in raw.values()]
            speeds.append([way.title, *cells, "yes" if way.places else "no"])
    losses = [["one of 60 samples is damaged", *(HEADINGS[case] for case in CASES)]]
    for name, way in WAYS.items():
        if name in damage:
            left_out = damage[name].get("left_out")
            cells = (
                [f"left out: {left_out}"] * len(CASES) if left_out else [outcome(damage[name].get(c)) for c in CASES]
            )
            losses.append([way.title, *cells])
    pictures = [["JPEG 512 to float32[64, 3, 224, 224]", "pictures a CPU second (this library = 1)"]]
    pictures += [[TRAININGS[name].title, number(answer, train["ours"])] for name, answer in train.items()]
    told_versions = ", ".join(sorted({f"{WAYS[name].environment} {each}" for name, each in kept["versions"].items()}))
    measured = (
        f"Measured {kept['date']} on {kept['machine']}, `BENCH_SCALE={kept['scale']}`; load averages "
        f"{kept['load'][0]} before, {kept['load'][1]} after. Versions: {told_versions}."
    )
    return "\n".join([*lines(speeds), "", *lines(losses), "", *lines(pictures), "", measured])
