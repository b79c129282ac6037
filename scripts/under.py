"""Run pytest with a given default start method for processes: ``under.py spawn -m torch``.

The method is handed on by the environment, and set by tests/conftest.py: also in the processes of ``pytest -n``.
"""

import os
import sys

if __name__ == "__main__":
    import pytest

    os.environ["WDS_TEST_START_METHOD"] = sys.argv[1]
    sys.exit(pytest.main(sys.argv[2:]))
