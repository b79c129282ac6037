"""Completion in the shells that are here, set up as docs/command-line.md says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import command_environment, run_wds, shell

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
SETUP = dict(re.findall(r"^(bash|zsh|fish): +`([^`]+)`", PAGE.replace("* ", ""), re.MULTILINE))
WORDS = [
    ("wds resh", ["reshard"]),
    ("wds check --pro", ["--profile"]),
    ("wds check --level no", ["note"]),
    ("wds nothing-li", []),
]


def test_the_page_says_how():
    """There is a line for each shell that click knows."""
    assert set(SETUP) == {"bash", "zsh", "fish"}


@pytest.mark.parametrize(("line", "expected"), WORDS)
def test_bash_completes(line, expected, tmp_path):
    """The line of the page defines a completion, and bash completes commands, options and values with it."""
    words = line.split()
    script = (
        f"{SETUP['bash']}\n"
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; COMP_LINE={line!r}; COMP_POINT={len(line)}\n"
        "function=$(complete -p wds | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        f"$function wds {words[-1]} {words[-2]} && printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    # the script runs the command by its name, as it is installed
    program = tmp_path / "bin" / "wds"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m webdataset "$@"\n')
    program.chmod(0o755)
    done = shell(script, tmp_path, PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert done.stderr == b""
    assert [found for found in done.stdout.decode().split("\n") if found] == expected


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_get_a_script(name, tmp_path):
    """What the line of the page runs is a script for that shell; where the shell is here, it accepts it."""
    assert f"_WDS_COMPLETE={name}_source wds" in SETUP[name]
    script = run_wds(_WDS_COMPLETE=f"{name}_source").stdout
    assert f"_WDS_COMPLETE={name}_complete".encode() in script
    if program := shutil.which(name):
        (tmp_path / "script").write_bytes(script)
        done = subprocess.run([program, "-n", tmp_path / "script"], env=command_environment(), check=False)
        assert done.returncode == 0
    found = run_wds(
        _WDS_COMPLETE=f"{name}_complete", COMP_WORDS="wds resh", COMP_CWORD="1" if name == "zsh" else "resh"
    )
    assert b"reshard" in found.stdout
