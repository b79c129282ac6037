"""The diagrams and recordings of the pages are what their scripts make."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_diagrams_are_drawn_by_their_script():
    """Nobody has changed them by hand, and the script was run after its last change."""
    command = [sys.executable, str(ROOT / "scripts" / "docs_pictures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_terminals_are_recorded_by_their_script():
    """The commands of the recordings print the words that the pictures show."""
    command = [sys.executable, str(ROOT / "scripts" / "terminal_pictures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
