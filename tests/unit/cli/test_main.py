"""The command ``wds`` as a whole: its help, how it loads commands, what errors become."""

import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import webdataset as wds
from support.command import SRC, WDS, command_environment, run_wds, shell, start_wds, wait_for_read
from webdataset.cli import exit_status, main, wids_index
from webdataset.testing import archives

ROOT = SRC.parent


@pytest.fixture
def shards(tmp_path):
    """Two shards of three samples in a folder."""
    for shard in range(2):
        members = [
            (f"k{shard}{number}.{field}", b"%s %d" % (field.encode(), number))
            for number in range(3)
            for field in ("txt", "cls")
        ]
        (tmp_path / f"s-{shard}.tar").write_bytes(archives.by_hand(members))
    return tmp_path


def test_help_loads_neither_torch_nor_numpy_nor_a_command():
    """``wds --help`` loads click and a few modules of ours: no command, no reader, no numpy."""
    code = "import sys; from webdataset.cli.main import main; main(['--help']); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=command_environment())
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"torch", "numpy", "PIL", "rich", "yaml", "urllib3", "json"}
    ours = {name for name in loaded if name.startswith("webdataset")}
    assert not {
        name for name in ours if name.startswith(("webdataset.storage", "webdataset.samples", "webdataset.tar"))
    }
    assert {name for name in ours if name.startswith("webdataset.cli.")} == {
        "webdataset.cli.main", "webdataset.cli.exit_status", "webdataset.cli.console",
    }  # fmt: skip


def test_help_lists_every_command_and_the_exit_status():
    """The help names each command by section, and the whole table of exit statuses."""
    text = run_wds("--help").stdout.decode()
    for name, (_, line) in main.list_commands().items():
        assert re.search(rf"^  {name} +{re.escape(line[:30])}", text, re.MULTILINE), name
    for status in exit_status.TABLE:
        assert re.search(rf"^  {status} ", text, re.MULTILINE)


@pytest.mark.once
@pytest.mark.parametrize("name", sorted(main.list_commands()))
def test_help_of_each_command_has_examples(name):
    """Each command loads under its name, and its help has examples that call it."""
    command = main.load_command(name)
    assert command.name == name
    assert "Examples:" in command.help
    assert f"wds {name}" in command.help
    printed = run_wds(name, "--help").stdout.decode()
    assert "Examples:" in printed
    assert f"  wds {name}" in printed.split("Examples:")[1]


def test_wds_index_says_its_own_statuses(shards):
    """Its help says the statuses that it ends with, and those of the program ``wids-index`` stay."""
    said = run_wds("index", "--help").stdout.decode()
    assert f"{exit_status.FAILED} failed" in said
    run_wds("index", "info", "none.json", cwd=shards, status=exit_status.FAILED)
    alone = wids_index.make_parser().format_help()
    assert "1 failed" in alone
    assert "wids-index create" in alone


@pytest.mark.parametrize("name", sorted(main.list_commands()))
def test_every_option_is_explained(name):
    """No option is without a line of help."""
    for parameter in main.load_command(name).params:
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


def test_program_and_module_are_the_same():
    """The installed program calls what ``python -m webdataset`` calls."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["wds"] == "webdataset.cli.main:run"
    assert run_wds("--version").stdout.startswith(b"wds, version ")


def test_wrong_command_is_answered_with_the_nearest(shards):
    """A name that is no command is exit status 2, with a proposal."""
    assert b"Did you mean 'ls'" in run_wds("lss", status=exit_status.WRONG_USE).stderr


def test_wrong_option_is_exit_status_2(shards):
    """An unknown option is an error of usage."""
    assert b"--wrong" in run_wds("ls", "--wrong", shards, status=exit_status.WRONG_USE).stderr


def test_error_is_one_short_message_without_traceback(tmp_path):
    """A shard that is not there: exit status 3, one line, no traceback."""
    done = run_wds("ls", tmp_path / "none.tar", status=exit_status.FAILED)
    assert done.stdout == b""
    assert done.stderr.startswith(b"wds: ")
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_tracebacks_can_be_asked_for(tmp_path):
    """``WDS_FULL_TRACEBACKS`` shows where an error came from."""
    done = run_wds("ls", tmp_path / "none.tar", status=exit_status.FAILED, WDS_FULL_TRACEBACKS="1")
    assert b"Traceback" in done.stderr


def test_closed_pipe_ends_it_silently(shards):
    """Where ``head`` ends first, nothing is said, and the shell sees SIGPIPE."""
    script = "yes s-0.tar | command head -3000 > list; wds ls @list | command head -1; echo ${PIPESTATUS[0]}"
    done = shell(script, shards)
    assert done.stdout.split() == [b"k00", b"txt", b"cls", str(exit_status.PIPE_CLOSED).encode()]
    assert done.stderr == b""


@pytest.mark.parametrize("arguments", ["ls s-0.tar", "--help", "--version", "ls --help"])
def test_full_disk_on_stdout_is_an_error(shards, arguments):
    """Output that cannot be written, help and version too, is exit status 3, not success."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    done = shell(f"wds {arguments} > /dev/full", shards)
    assert done.returncode == exit_status.FAILED
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_ends_it_as_by_the_signal(number):
    """Ctrl-C: one word on standard error, and the process dies by SIGINT, so that shell loops end too; so by others."""
    # what runs the tests, nohup say, may ignore it, and a child would as well
    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        process = start_wds("ls", "-", stdout=subprocess.PIPE)
    finally:
        signal.signal(number, before)
    assert process.stdin is not None
    process.stdin.write(archives.by_hand([("a.txt", b"1"), ("b.txt", b"2")])[:2048] + b"c.txt".ljust(100, b"\0"))
    process.stdin.flush()
    wait_for_read(process.pid)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -number
    assert said == b"wds: interrupted\n"


def test_signals_that_are_ignored_stay_so():
    """A program that was started under nohup does not end with its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start_wds("ls", "-", stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdin is not None
    wait_for_read(process.pid)
    process.send_signal(signal.SIGHUP)
    listed, _ = process.communicate(archives.by_hand([("a.txt", b"1")]), timeout=60)
    assert process.returncode == 0
    assert listed == b"a\ttxt\n"


def test_terminal_gets_no_control_characters(tmp_path):
    """Names with escape sequences are written so that the terminal does not obey them; JSON keeps them."""
    (tmp_path / "evil.tar").write_bytes(archives.by_hand([("\x1b[31mred\n.txt", b"x")]))
    master, slave = pty.openpty()
    environment = command_environment(TERM="xterm")
    with subprocess.Popen([*WDS, "ls", "evil.tar"], stdout=slave, cwd=tmp_path, env=environment):
        os.close(slave)
        text = _read_terminal(master)
    assert text == b"\\033[31mred\\n\ttxt\r\n"
    assert b'"\\u001b[31mred\\n"' in run_wds("ls", "--json", "evil.tar", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("latin-1", b"\xe9\ttxt\n\\u4e2d\ttxt\n\\udcff\ttxt\n"),
        ("ascii", b"\\xe9\ttxt\n\\u4e2d\ttxt\n\\udcff\ttxt\n"),
        ("utf8", "\u00e9\ttxt\n\u4e2d\ttxt\n".encode() + b"\xff\ttxt\n"),
    ],
)
def test_stdout_that_cannot_hold_a_name_gets_escapes(tmp_path, encoding, shown):
    """Where standard output is not UTF-8, what its encoding lacks is escaped; UTF-8 output keeps the bytes."""
    (tmp_path / "s.tar").write_bytes(archives.by_hand([(f"{key}.txt", b"x") for key in ("\u00e9", "\u4e2d", "\udcff")]))
    assert run_wds("ls", "s.tar", cwd=tmp_path, PYTHONIOENCODING=encoding).stdout == shown


HIDDEN = "\u200b\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\udc80\udc9f\x9b"


def test_names_seem_no_other_names(tmp_path):
    """Raw control bytes and signs that hide or reorder others are escaped; as a list of tags they are read back."""
    (tmp_path / "s.tar").write_bytes(archives.by_hand([(f"a{sign}b.txt", b"x") for sign in HIDDEN]))
    lines = run_wds("ls", "s.tar", cwd=tmp_path).stdout
    assert lines.splitlines() == [
        b"a" + (b"\\233" if sign == "\x9b" else b"\\u%x" % ord(sign)) + b"b\ttxt" for sign in HIDDEN
    ]
    run_wds("select", "--keys", "-", "-o", "new.tar", "s.tar", cwd=tmp_path, stdin=lines)
    assert run_wds("ls", "new.tar", cwd=tmp_path).stdout == lines


def test_lone_surrogates_in_a_document_are_escaped(tmp_path):
    """JSON may say half a character, or what would be written as a control byte: both come as escapes."""
    (tmp_path / "s.tar").write_bytes(archives.by_hand([("a.json", rb'{"a": "\ud800 \udc9b"}')]))
    for command in ("show", "head"):
        assert rb"\ud800 \udc9b" in run_wds(command, "s.tar", cwd=tmp_path).stdout


def _read_terminal(master):
    """Return everything that a program wrote to a terminal."""
    text = b""
    try:
        while piece := os.read(master, 4096):
            text += piece
    except OSError:  # Linux: the program has ended
        pass
    finally:
        os.close(master)
    return text


def test_completion_comes_from_click():
    """The shell is told how to complete, and completes commands and options."""
    script = run_wds(_WDS_COMPLETE="bash_source").stdout
    assert b"_WDS_COMPLETE=bash_complete" in script
    found = run_wds(_WDS_COMPLETE="bash_complete", COMP_WORDS="wds he", COMP_CWORD="1").stdout
    assert b"head" in found


@pytest.mark.parametrize("name", ["wids-index", "widsindex"])
def test_old_programs_stay(name):
    """The published names still start the same function."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts[name] == "webdataset.cli.wids_index:run"


def test_index_is_wids_index(shards):
    """``wds index`` does what ``wids-index`` does, with the exit status of ``wds``."""
    run_wds("index", "create", "s-{0..1}.tar", "-o", "index.json", cwd=shards)
    info = run_wds("index", "info", "--json", "index.json", cwd=shards).stdout
    assert b'"samples": 6' in info
    run_wds("index", "info", "none.json", cwd=shards, status=exit_status.FAILED)
    run_wds("index", "wrong", cwd=shards, status=exit_status.WRONG_USE)
    assert b"usage: wds index" in run_wds("index", "--help").stdout


def test_a_file_that_is_not_there_is_answered_with_the_nearest(tmp_path):
    """Of its folder; nothing is said where none is like it, and nothing for wildcards and urls."""
    (tmp_path / "train-000.tar").write_bytes(archives.member(b"a.txt", b"x") + archives.END)
    for name, hint in (
        ("trian-000.tar", "did you mean 'train-000.tar'?"),
        (f"{tmp_path}/train-00.tar", f"did you mean '{tmp_path}/train-000.tar'?"),
        ("other.tar", None),
        ("train-00*.tgz", None),
        ("nowhere/train-000.tar", None),
        ("train-{00-01}.tar", "did you mean 'train-{00..01}.tar'?"),
        ("train-{00.01}.tar", "did you mean 'train-{00..01}.tar'?"),
    ):
        told = run_wds("ls", name, cwd=tmp_path, status=exit_status.FAILED).stderr.decode()
        assert told.count("did you mean") == (hint is not None), told
        assert hint is None or hint in told
    # what is missing stands in a folder that is there
    told = run_wds("cache", "ls", ".", cwd=tmp_path, status=exit_status.FAILED).stderr.decode()
    told += run_wds("cache", "ls", str(tmp_path), status=exit_status.FAILED).stderr.decode()
    assert told.count("no cache directory") == 2
    assert "did you mean" not in told


def test_what_a_filter_asks_for_in_vain(tmp_path):
    """The fields that there are, and how a value within JSON is written; how values are compared."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "a", "json": {"width": 3}, "txt": "x"})
    told = run_wds("grep", "width > 1", "a.tar", cwd=tmp_path, status=exit_status.NONE_FOUND).stderr.decode()
    assert (
        "missing in all samples: width; the first sample has json, txt (what a JSON field holds is json.width)" in told
    )
    told = run_wds("grep", "jsn.width > 1", "a.tar", cwd=tmp_path, status=exit_status.NONE_FOUND).stderr.decode()
    assert told.rstrip().endswith("missing in all samples: jsn.width; the first sample has json, txt")
    told = run_wds("grep", "json.width = 3", "a.tar", cwd=tmp_path, status=exit_status.WRONG_USE).stderr.decode()
    assert "at column 12; to compare, write ==" in told
    told = run_wds("grep", "json.width == ", "a.tar", cwd=tmp_path, status=exit_status.WRONG_USE).stderr.decode()
    assert "to compare" not in told
