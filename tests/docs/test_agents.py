"""What ``AGENTS.md`` and ``llms.txt`` say is so: the commands run, and every page is listed."""

import re
import shlex
from pathlib import Path

import pytest

import webdataset as wds
from support.command import run_wds

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = re.findall(r"^    (wds .*?)(?: +#.*)?$", (ROOT / "AGENTS.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Shards as the commands of the page name them, in the folder that the process is in."""
    monkeypatch.chdir(tmp_path)
    for stem in ("train", "old"):
        for number in range(2):
            with wds.TarWriter(f"{stem}-{number:03d}.tar") as sink:
                for index in range(6):
                    sink.write({"__key__": f"{number}-{index}", "txt": "text", "json": {"width": 100 * index}})
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(shards, line):
    """Each line of the page, on shards here."""
    arguments = shlex.split(line.replace("s3://bucket/train-000.tar", "train-000.tar"))[1:]
    run = run_wds(*arguments)
    assert run.returncode == 0, run.stderr
    assert run.stdout or list(shards.glob("new-*.tar"))


def test_the_program_runs(tmp_path, monkeypatch):
    """The block of Python, as it stands."""
    monkeypatch.chdir(tmp_path)
    program = re.search(r"```python\n(.*?)```", (ROOT / "AGENTS.md").read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    exec(compile(program[1], "AGENTS.md", "exec"), {"__name__": "agents"})
    assert len(list(tmp_path.glob("train-*.tar"))) == 2


def test_each_kind_of_command_is_shown():
    """The page names enough commands to find the others."""
    assert len(COMMANDS) >= 6


def test_every_page_is_listed():
    """``llms.txt`` links to each page of the site, and to nothing that is not there."""
    links = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8")))
    pages = {
        f"docs/{page}" for page in re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    }
    assert len(pages) > 20
    assert pages <= links
    assert all((ROOT / link).is_file() for link in links)
