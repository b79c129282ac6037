"""The settings page lists what the library reads."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "settings_page.py"


def test_settings_page_is_up_to_date():
    """Each declared environment variable stands in docs/settings.md, with its default and meaning."""
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
