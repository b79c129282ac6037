"""Run pytest with a given default start method for processes: ``under.py spawn -m torch``."""

import multiprocessing
import sys

if __name__ == "__main__":
    import pytest

    multiprocessing.set_start_method(sys.argv[1])
    sys.exit(pytest.main(sys.argv[2:]))
