"""The answers of ``peers_resume.py`` as a table in Markdown."""

from typing import Any

EARLY, LATE, STEP = 37, 120, 25  # batches after which one rank, one rank, and two ranks are killed


def outcome(answer: dict[str, Any]) -> str:
    """Say in a cell what came of going on."""
    trouble = answer.get("refused")
    if trouble:
        return f"**{trouble}**" if trouble in {"hangs", "dies"} else f"refused: `{trouble}`"
    if answer["lost"] or answer["twice"]:
        return f"**{answer['lost']} lost, {answer['twice']} twice**"
    if "same_sequence" not in answer:
        return "exact"
    if answer["same_sequence"]:
        return "exact, same order"
    same, among = answer["same_global_batches"], answer["global_batches"]
    return "exact, same global batches" if same == among else f"exact, {same} of {among} global batches the same"


def kilobytes(number: int | None) -> str:
    """Write a number of bytes."""
    return "-" if number is None else f"{number / 1000:,.0f} KB"


def table(everyone: dict[str, dict[str, dict[str, Any]]], titles: dict[str, str]) -> str:
    """Return the markdown table of all answers."""
    cases = ["not stopped", "2 workers", "2 workers, late", "2 to 3 workers", "2 to 1 workers"]
    cases += ["2 ranks, not stopped", "2 to 2 ranks", "2 to 1 ranks", "2 to 3 ranks"]
    cases += ["2 to 1 ranks, same batch", "2 to 3 ranks, same batch"]
    plain = ("not stopped", "2 workers", "2 workers, late")
    rows: list[tuple[str, Any]] = [
        ("converts first", lambda a: kilobytes(a["prepare"]["bytes_written"]) if "prepare" in a else "no"),
        *((case, lambda a, case=case: outcome(a[case])) for case in cases),
        *((f"bytes read, {case}", lambda a, case=case: kilobytes(a[case].get("bytes_read"))) for case in plain),
        *(
            (
                f"state after batch {stop}",
                lambda a, stop=stop: "{state_bytes} B, {written_as}".format(**a[f"state after batch {stop}"]),
            )
            for stop in (EARLY, LATE)
        ),
        *((f"seconds, {case}", lambda a, case=case: str(a[case].get("seconds"))) for case in plain),
    ]
    lines = [["", *(titles[name] for name in everyone)], ["---"] * (len(everyone) + 1)]
    lines += [[title, *(tell(answers) for answers in everyone.values())] for title, tell in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
