"""Random pipelines of all stages, stopped anywhere and resumed three times: the items of a run that never stopped.

``make test`` plays a few cases, ``make test-all`` hundreds (``RESUME_FUZZ_CASES``), ``scripts/resume_fuzz.py``
thousands, and a single one by its seed.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the generator is in modules beside this one
try:
    from resume_checks import judged
    from resume_pipelines import drawn
    from resume_report import report
finally:
    sys.path.pop(0)

CASES = int(os.environ.get("RESUME_FUZZ_CASES", "9"))
CUTS = int(os.environ.get("RESUME_FUZZ_CUTS", "2"))


@pytest.mark.parametrize("seed", range(CASES))
def test_a_resumed_run_is_the_run_that_never_stopped(seed):
    """Stopped at random, at borders and ends, resumed on the same workers and on others: nothing lost, moved, twice."""
    verdict = judged(drawn(seed), CUTS)
    assert not verdict.failed, report(verdict)
