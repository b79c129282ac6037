"""What the resume fuzz says about a case, for a person: the pipeline as code, where it was stopped, what came."""


def report(verdict):
    """Return a text.

    Args:
        verdict: on a case.
    """
    case = verdict.case
    lines = [
        f"seed {case.seed}: {verdict.outcome} ({verdict.items} items, {verdict.resumed} runs were resumed)",
        f"pipeline: {case.code}",
        f"epoch: {case.epoch}",
    ]
    if verdict.why:
        lines.append(f"because: {verdict.why}")
    lines += [f"  {step}" for step in verdict.trail]
    lines.append(f"again: scripts/resume_fuzz.py --seed {case.seed}")
    return "\n".join(lines)
