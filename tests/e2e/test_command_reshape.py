"""``wds cat``, ``split``, ``select``, ``reshard``, ``shuffle``, ``sort`` and ``join`` as programs in a shell."""

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from support.command import WDS, command_environment, json_lines, run_wds, shell, start_wds, wait_for_read
from webdataset.cli import exit_status
from webdataset.cli.schema import find_schemas
from webdataset.testing import archives
from webdataset.writing.local_file import is_alive

TAR = shutil.which("tar")
NO_SAMPLES = "there were no samples to write"
MISSING = "missing in all samples:"
HAS = "; the first sample has txt, json"


def write_shard(path, keys, *, mtime=1_500_000_000, size=10):
    """Write a shard with times, modes and owners of its own."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for number, key in enumerate(keys):
            for field, payload in (("txt", b"x" * size), ("json", json.dumps({"n": number, "key": key}).encode())):
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size, info.mtime, info.mode, info.uname = len(payload), mtime + number + 0.25, 0o640, "ann"
                archive.addfile(info, io.BytesIO(payload))


@pytest.fixture
def here(tmp_path):
    """Three shards of four samples."""
    for shard in range(3):
        write_shard(tmp_path / f"s-{shard}.tar", [f"k{shard}{number}" for number in range(4)])
    return tmp_path


def keys(*shards, cwd):
    """The keys of shards, in order."""
    return [line["key"] for line in json_lines(run_wds("ls", "--json", *shards, cwd=cwd))]


ALL = [f"k{shard}{number}" for shard in range(3) for number in range(4)]


@pytest.mark.skipif(TAR is None, reason="no tar here")
def test_cat_is_what_gnu_tar_concatenates(here):
    """The same members with the same times, modes and owners, in the same order, as ``tar --concatenate``."""
    run_wds("cat", "-o", "ours.tar", "s-{0..2}.tar", cwd=here)
    shell("cp s-0.tar theirs.tar; tar -Af theirs.tar s-1.tar; tar -Af theirs.tar s-2.tar", here)
    listing = [
        subprocess.run([TAR, "-tvf", name, "--full-time"], cwd=here, capture_output=True, check=True).stdout
        for name in ("ours.tar", "theirs.tar")
    ]
    assert listing[0] == listing[1]
    assert len(listing[0].splitlines()) == 24
    shell("mkdir a b; tar -xf ours.tar -C a; tar -xf theirs.tar -C b", here)
    assert subprocess.run(["diff", "-r", "a", "b"], cwd=here, check=False).returncode == 0


@pytest.mark.skipif(TAR is None, reason="no tar here")
def test_cat_into_a_pipe(here):
    """A shard on standard output is read by tar, and by wds."""
    done = shell("wds cat -o - s-0.tar | tar -tf - | head -2; wds cat -o - s-1.tar | wds ls - | tail -1", here)
    assert done.stdout == b"k00.txt\nk00.json\nk13\ttxt json\n"
    assert done.stderr == b""


def test_cat_keeps_files_that_are_no_samples(here):
    """Joining whole shards judges nothing: files without keys and metadata stay."""
    (here / "odd.tar").write_bytes(archives.by_hand([("README", b"r"), ("__meta__/x", b"m"), ("a.txt", b"1")]))
    run_wds("cat", "-o", "out.tar", "odd.tar", cwd=here)
    assert run_wds("ls", "--members", "out.tar", cwd=here).stdout == b"README\n__meta__/x\na.txt\n"


def test_files_of_no_sample_are_told(here):
    """Where samples are written, what belongs to none is left out with a warning."""
    (here / "odd.tar").write_bytes(archives.by_hand([("README", b"r"), ("a.txt", b"1")]))
    done = run_wds("sort", "-o", "out.tar", "odd.tar", cwd=here)
    assert b"left out 1 files of no sample: README" in done.stderr


def test_payloads(here):
    """Fields and members are written as bytes, with nothing between."""
    assert run_wds("cat", "--field", "txt", "s-0.tar", cwd=here).stdout == b"x" * 40
    assert json.loads(run_wds("cat", "--key", "k12", "-f", "json", "s-*.tar", cwd=here).stdout)["n"] == 2
    assert run_wds("cat", "--member", "k00.txt", "s-0.tar", cwd=here).stdout == b"x" * 10
    run_wds("cat", "--member", "none", "s-0.tar", cwd=here, status=exit_status.NONE_FOUND)
    done = run_wds("cat", "--key", "k00", "-f", "jpg", "s-0.tar", cwd=here, status=exit_status.FAILED)
    assert b"it has txt json" in done.stderr


def test_cat_by_key(here):
    """Chosen samples become a shard; keys that are nowhere are told."""
    run_wds("cat", "--key", "k21", "--key", "k00", "-o", "two.tar", "s-*.tar", cwd=here)
    assert keys("two.tar", cwd=here) == ["k00", "k21"]
    done = run_wds("cat", "-k", "k00", "-k", "zz", "-o", "one.tar", "s-0.tar", cwd=here, status=exit_status.PARTIAL)
    assert b"zz" in done.stderr


def test_nothing_is_replaced_without_force(here):
    """What is there stays, whole, and the message says what to do; a dry run writes nothing."""
    before = (here / "s-1.tar").read_bytes()
    done = run_wds("cat", "-o", "s-1.tar", "s-0.tar", cwd=here, status=exit_status.FAILED)
    assert b"--force" in done.stderr
    assert (here / "s-1.tar").read_bytes() == before
    done = run_wds("split", "-n", "-c", "5", "-o", "d-%02d.tar", "s-*.tar", cwd=here)
    assert b"would write d-02.tar (2 samples)" in done.stderr
    assert not list(here.glob("d-*"))
    run_wds("cat", "--force", "-o", "s-1.tar", "s-0.tar", cwd=here)
    assert keys("s-1.tar", cwd=here) == ALL[:4]


def test_input_may_be_replaced_by_force(here):
    """A shard sorted into itself is replaced when it has been read: the output appears at the end."""
    run_wds("sort", "-r", "--force", "-o", "s-0.tar", "s-0.tar", cwd=here)
    assert keys("s-0.tar", cwd=here) == ALL[3::-1]


def test_later_shard_of_a_pattern_that_is_there(here):
    """A shard that a pattern would replace stops the command before it is opened; those before it are complete."""
    (here / "p-01.tar").write_bytes(b"precious")
    run_wds("split", "-c", "4", "-o", "p-%02d.tar", "s-*.tar", cwd=here, status=exit_status.FAILED)
    assert (here / "p-01.tar").read_bytes() == b"precious"
    assert keys("p-00.tar", cwd=here) == ALL[:4]
    assert sorted(path.name for path in here.glob("*p-*")) == ["p-00.tar", "p-01.tar"]


def test_damaged_input_leaves_no_output(here):
    """A shard that is cut: exit status 3, and nothing under the name of the output, partial or not."""
    cut = (here / "s-1.tar").read_bytes()[:5000]
    (here / "s-1.tar").write_bytes(cut)
    for command in (["cat"], ["shuffle"], ["sort"], ["split", "-c", "100"], ["reshard", "-N", "2"]):
        run_wds(*command, "-o", "out-%d.tar", "s-{0..2}.tar", cwd=here, status=exit_status.FAILED)
        assert sorted(path.name for path in here.iterdir()) == ["s-0.tar", "s-1.tar", "s-2.tar"], command


def test_split(here):
    """By count and by size; JSON lines say what was written."""
    lines = json_lines(run_wds("split", "--json", "-c", "5", "-o", "p-%02d.tar", "s-*.tar", cwd=here))
    assert [line["samples"] for line in lines] == [5, 5, 2]
    assert keys("p-*.tar", cwd=here) == ALL
    pytest.importorskip("jsonschema").validate(lines[0], find_schemas()["split"])
    run_wds("split", "-s", "10kB", "-o", "q-%02d.tar", "s-*.tar", cwd=here)
    assert all(path.stat().st_size <= 10_000 for path in here.glob("q-*.tar"))
    assert keys("q-*.tar", cwd=here) == ALL
    run_wds("split", "-o", "one.tar", "s-0.tar", cwd=here, status=exit_status.WRONG_USE)
    run_wds("split", "-s", "many", "-o", "o-%d.tar", "s-0.tar", cwd=here, status=exit_status.WRONG_USE)


def test_reshard(here):
    """Three shards to five, in order, as equal as can be; and shuffled by a seed, the same each time."""
    run_wds("reshard", "--shards", "5", "-o", "n-%d.tar", "s-*.tar", cwd=here)
    assert keys("n-{0..4}.tar", cwd=here) == ALL
    for name in ("a", "b"):
        run_wds("reshard", "-N", "5", "--shuffle", "--seed", "1", "-o", f"{name}-%d.tar", "s-*.tar", cwd=here)
    shuffled = keys("a-{0..4}.tar", cwd=here)
    assert sorted(shuffled) == ALL != shuffled
    assert all((here / f"a-{n}.tar").read_bytes() == (here / f"b-{n}.tar").read_bytes() for n in range(5))
    run_wds("diff", "s-*.tar", "a-*.tar", cwd=here)
    done = run_wds("reshard", "-N", "2", "-o", "x-%d.tar", "-", cwd=here, status=exit_status.WRONG_USE)
    assert b"standard input" in done.stderr
    run_wds("reshard", "-N", "2", "-o", "x.tar", "s-0.tar", cwd=here, status=exit_status.WRONG_USE)


def test_seed_that_was_drawn_is_told(here):
    """Without --seed, the message says how to make the same order again."""
    done = run_wds("shuffle", "-o", "a.tar", "s-*.tar", cwd=here)
    seed = done.stderr.split()[-1]
    run_wds("shuffle", "--seed", seed.decode(), "-o", "b.tar", "s-*.tar", cwd=here)
    assert (here / "a.tar").read_bytes() == (here / "b.tar").read_bytes()


def test_sort(here):
    """By any expression, stable, ascending or descending; by key without one."""
    run_wds("shuffle", "--seed", "5", "-o", "mixed.tar", "s-*.tar", cwd=here)
    run_wds("sort", "-o", "sorted.tar", "mixed.tar", cwd=here)
    assert keys("sorted.tar", cwd=here) == ALL
    run_wds("sort", "--by", "json.n", "--memory", "3k", "-o", "n.tar", "sorted.tar", cwd=here)
    assert keys("n.tar", cwd=here) == sorted(ALL, key=lambda key: key[2])
    run_wds("sort", "-r", "-b", "[json.n, key]", "-o", "r.tar", "sorted.tar", cwd=here)
    assert keys("r.tar", cwd=here) == sorted(ALL, key=lambda key: (key[2], key), reverse=True)


def test_select(here):
    """Samples by an expression or by keys, fields kept, dropped and renamed."""
    run_wds("select", "-w", "json.n >= 2", "-d", "txt", "-r", "meta.json=json", "-o", "o.tar", "s-*.tar", cwd=here)
    assert run_wds("ls", "o.tar", cwd=here).stdout.splitlines()[0] == b"k02\tmeta.json"
    assert len(keys("o.tar", cwd=here)) == 6
    (here / "keys").write_text("k11\nk23\n")
    run_wds("select", "--keys", "keys", "-k", "j*", "-o", "k.tar", "s-*.tar", cwd=here)
    assert run_wds("ls", "k.tar", cwd=here).stdout == b"k11\tjson\nk23\tjson\n"
    run_wds("select", "-r", "wrong", "-o", "w.tar", "s-0.tar", cwd=here, status=exit_status.WRONG_USE)
    done = run_wds("select", "-w", "1 / json.n", "-o", "w.tar", "s-0.tar", cwd=here, status=exit_status.FAILED)
    assert b"division" in done.stderr
    skip = ["--on-error", "skip"]
    run_wds("select", "-w", "1 / json.n", *skip, "-o", "w.tar", "s-0.tar", cwd=here, status=exit_status.PARTIAL)
    assert keys("w.tar", cwd=here) == ALL[1:4]


@pytest.mark.parametrize(
    ("arguments", "told", "status"),
    [
        (["cat", "-k", "k00", "-k", "zz", "-f", "txt"], "no shard has the key zz", exit_status.PARTIAL),
        (["cat", "-k", "y", "-k", "zz", "-f", "txt"], "no shard has the 2 keys y, zz", exit_status.NONE_FOUND),
        (["cat", "-f", "txt", "-f", "jpg"], "no shard has the field jpg", exit_status.DONE),
        (["cat", "-f", "jpg"], "no shard has the field jpg", exit_status.NONE_FOUND),
        (["cat", "-m", "k00.txt", "-m", "zz"], "no shard has the file zz", exit_status.PARTIAL),
        (["grep", "-c", "json.nn > 1 or n"], f"{MISSING} json.nn, n{HAS} (what a JSON field holds is json.n)", 1),
        (["grep", "-q", "json.nn > 1"], "", exit_status.NONE_FOUND),
        (["grep", "json.n > 100"], "", exit_status.NONE_FOUND),
        (["grep", "json.n == 0 or json.nn"], "", exit_status.DONE),
        (["sort", "--by", "[json.nn, key]", "-o", "-"], f"{MISSING} json.nn{HAS}", exit_status.DONE),
        (["select", "-k", "[tj]*", "-d", "jpg", "-r", "a=b", "-o", "-"], "no sample has a field jpg, b", 0),
        (["select", "-w", "json.n > 9", "-k", "jpg", "-o", "-"], NO_SAMPLES, exit_status.DONE),
        (["select", "-w", "jpg.x", "-o", "-"], f"{NO_SAMPLES}\nwds: warning: {MISSING} jpg.x{HAS}", 0),
    ],
)  # fmt: skip
def test_names_of_nothing_are_told(here, arguments, told, status):
    """Keys, fields, files and paths into JSON that no sample has may be misspelt; nothing is told of others."""
    done = run_wds(*arguments, "s-0.tar", "s-1.tar", cwd=here, status=status)
    assert done.stderr.decode() == (f"wds: warning: {told}\n" if told else "")


def test_selected_samples_keep_their_bytes(here):
    """What passes through a chain of commands is byte for byte what it was."""
    script = "wds select -w True -o - s-0.tar | wds sort -o - - | wds split -c 2 -o h-%d.tar - && cat s-0.tar"
    whole = shell(script, here).stdout
    parts = [(here / f"h-{number}.tar").read_bytes()[:-1024] for number in range(2)]
    assert whole.startswith(b"".join(parts))


def test_join(here):
    """Fields of two datasets by key, one sharded and shuffled."""
    run_wds("select", "-k", "txt", "-o", "txt.tar", "s-*.tar", cwd=here)
    run_wds("select", "-k", "json", "-o", "j-%d.tar", "-c", "5", "s-*.tar", cwd=here)
    run_wds("join", "-o", "both.tar", "txt.tar", "j-*.tar", cwd=here)
    run_wds("diff", "both.tar", "s-*.tar", cwd=here)
    assert keys("both.tar", cwd=here) == ALL
    run_wds("join", "-o", "b.tar", "txt.tar", "j-0.tar", cwd=here, status=exit_status.FAILED)
    run_wds("join", "--missing", "skip", "-o", "b.tar", "txt.tar", "j-0.tar", cwd=here)
    assert keys("b.tar", cwd=here) == ALL[:5]


def test_compression_by_name_and_option(here):
    """The name decides, or -z; -z none does not compress whatever the name."""
    run_wds("cat", "-o", "a.tar.gz", "s-0.tar", cwd=here)
    assert (here / "a.tar.gz").read_bytes()[:2] == b"\x1f\x8b"
    run_wds("cat", "-z", "xz", "-o", "a.tar", "a.tar.gz", cwd=here)
    assert (here / "a.tar").read_bytes()[:5] == b"\xfd7zXZ"
    run_wds("cat", "-z", "none", "-o", "b.tgz", "a.tar", cwd=here)
    assert (here / "s-0.tar").read_bytes().startswith((here / "b.tgz").read_bytes()[:-1024])


def test_archive_is_not_written_to_a_terminal(here):
    """A terminal as the target of a shard is an error of usage."""
    master, slave = pty.openpty()
    done = subprocess.run(
        [*WDS, "cat", "-o", "-", "s-0.tar"], stdout=slave, stderr=subprocess.PIPE, cwd=here, env=command_environment()
    )
    os.close(slave)
    os.close(master)
    assert done.returncode == exit_status.WRONG_USE
    assert b"terminal" in done.stderr


@pytest.mark.parametrize("colour", [{"NO_COLOR": "1"}, {"NO_COLOR": ""}])
def test_progress_on_a_terminal_only(here, colour):
    """Standard error shows progress and what was written where it is a terminal, plain under NO_COLOR."""
    master, slave = pty.openpty()
    environment = command_environment(TERM="xterm", **colour)
    with subprocess.Popen([*WDS, "sort", "-o", "o.tar", "s-0.tar"], stderr=slave, cwd=here, env=environment) as process:
        os.close(slave)
        said = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:
                break
            if not piece:
                break
            said += piece
    os.close(master)
    assert process.returncode == 0
    assert b"wds: wrote o.tar (4 samples)" in said
    assert (b"\x1b[" in said) is (colour["NO_COLOR"] == "" and b"sorting" in said)


def test_closed_pipe_leaves_quietly(here):
    """A reader that ends early: no message, and status 141 for the shell."""
    write_shard(here / "big.tar", [f"k{number}" for number in range(300)], size=5000)
    done = shell("wds cat -o - big.tar | head -c 100 > /dev/null; echo ${PIPESTATUS[0]}", here)
    assert done.stdout == b"%d\n" % exit_status.PIPE_CLOSED
    assert done.stderr == b""


@pytest.fixture
def alike(here):
    """Two shards in which the last key of the first is the first key of the second, with other fields."""
    for name, names in (("a.tar", ["0.txt", "1.txt"]), ("b.tar", ["1.cls", "2.cls"])):
        (here / name).write_bytes(archives.by_hand([(member, name.encode()) for member in names]))
    return here


SPEC = "version: 1\nsplits: {train: {mix: concat, sources: [a.tar, b.tar]}}\n"
COMMANDS = [
    "cat a.tar b.tar", "cat -c 10 a.tar b.tar", "split -c 10 a.tar b.tar", "select -w True a.tar b.tar",
    "sort a.tar b.tar", "reshard --shards 1 a.tar b.tar", "map builtins:dict a.tar b.tar", "proc true a.tar b.tar",
    "mix --seed 1 spec.yaml",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_samples_of_one_key_are_never_joined(alike, command):
    """Readers would take the two for one: nothing is written, unless the samples get new keys."""
    (alike / "spec.yaml").write_text(SPEC)
    words = command.split()
    done = run_wds(*words, "-o", "x-%d.tar", cwd=alike, status=exit_status.FAILED)
    assert b"two samples of one key" in done.stderr
    assert b"--rekey" in done.stderr
    assert not list(alike.glob("*x-*"))
    run_wds(*words, "--rekey", "-o", "x-%d.tar", cwd=alike)
    found = json_lines(run_wds("ls", "--json", "x-0.tar", cwd=alike))
    assert [line["key"] for line in found] == ["000000000", "000000001", "000000002", "000000003"]
    fields = [[field["field"] for field in line["fields"]] for line in found]
    assert fields == [["txt"], ["txt"], ["cls"], ["cls"]]


def test_samples_of_one_key_may_stand_in_two_shards(alike):
    """Readers join nothing across shards; files of no sample between do not hide that two stand together."""
    run_wds("split", "-c", "2", "-o", "x-%d.tar", "a.tar", "b.tar", cwd=alike)
    assert keys("x-0.tar", "x-1.tar", cwd=alike) == ["0", "1", "1", "2"]
    (alike / "a.tar").write_bytes(archives.by_hand([("1.txt", b"a"), ("README", b"")]))
    (alike / "b.tar").write_bytes(archives.by_hand([("LICENSE", b""), ("1.cls", b"b")]))
    run_wds("cat", "-o", "y.tar", "a.tar", "b.tar", cwd=alike, status=exit_status.FAILED)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_interrupted_writer_leaves_no_shard(here, number):
    """However it is stopped, nothing stands under the final name, and Ctrl-C and SIGTERM leave nothing at all."""
    read, write = os.pipe()
    process = start_wds("cat", "-o", "out.tar", "-", stdin=read, cwd=here)
    os.close(read)
    os.write(write, (here / "s-0.tar").read_bytes()[:4096])
    while not list(here.glob(".out.tar*")):
        time.sleep(0.01)
    wait_for_read(process.pid)
    process.send_signal(number)
    process.communicate(timeout=60)
    os.close(write)
    assert process.returncode == -number
    assert not (here / "out.tar").exists()
    if number != signal.SIGKILL:
        assert not list(here.glob(".out.tar*"))


def test_sigterm_ends_what_a_command_started(here, tmp_path):
    """The commands of ``wds proc`` end with it, and its temporary files go."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start_wds("proc", "-j", "2", "-T", temporary, "sleep 600", "-o", "out.tar", "s-0.tar", cwd=here)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("no list of children here")
    while len(list(temporary.iterdir())) < 2 or len(_descendants(process.pid)) < 2:
        time.sleep(0.01)
    started = _descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert said == b"wds: interrupted\n"
    assert list(temporary.iterdir()) == []
    assert not [pid for pid in started if is_alive(pid)]


def _descendants(pid):
    """Return the processes that a process has started, and those that they have."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (thread / "children").read_text().split()]
    return found + [other for child in found for other in _descendants(child)]


CHILD = """
import resource, sys
from webdataset.cli.main import main
status = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


def peak_kilobytes(*arguments, cwd):
    """The most memory that a command took."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], cwd=cwd, env=command_environment(), capture_output=True, check=True
    )
    return int(done.stderr.split()[-1])


@pytest.mark.parametrize("command", [["shuffle", "--seed", "1"], ["sort", "-b", "-json.n"]])
def test_memory_is_bounded(here, command):
    """A dataset ten times the limit takes no more memory than the limit, above what a small one takes."""
    write_shard(here / "big.tar", [f"k{number:05}" for number in range(4000)], size=15_000)
    limit = 6_000_000
    assert (here / "big.tar").stat().st_size > 10 * limit
    small = peak_kilobytes(*command, "-o", "small.tar", "s-0.tar", cwd=here)
    large = peak_kilobytes(*command, "-M", str(limit), "-o", "big-out.tar", "big.tar", cwd=here)
    assert (large - small) * 1024 < 3 * limit
    run_wds("diff", "-q", "big.tar", "big-out.tar", cwd=here)


def test_create_and_read_back(here):
    """A folder becomes shards that tar unpacks to the same files; the same folder gives the same bytes."""
    (here / "in/deep").mkdir(parents=True)
    for number in range(5):
        (here / f"in/deep/f{number}.bin").write_bytes(os.urandom(1000))
    run_wds("create", "-o", "c-%d.tar", "-c", "2", "in", cwd=here)
    run_wds("create", "-o", "d-%d.tar", "-c", "2", "in/", cwd=here)
    assert [(here / f"c-{n}.tar").read_bytes() for n in range(3)] == [
        (here / f"d-{n}.tar").read_bytes() for n in range(3)
    ]
    shell("mkdir out; for shard in c-*.tar; do tar -xf $shard -C out; done", here)
    assert subprocess.run(["diff", "-r", "in", "out"], cwd=here, check=False).returncode == 0


def test_create_tells_what_it_leaves_out(here):
    """Hidden files and those without an extension make no samples, and are named."""
    for name in ("a.txt", ".b.txt", "README", "sub/c.txt", "sub/.d.txt"):
        (here / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "files" / name).write_text("x")
    done = run_wds("create", "-o", "made.tar", "files", cwd=here)
    assert b"warning: files: left out 3 files of no sample: .b.txt, README, sub/.d.txt\n" in done.stderr
    assert run_wds("ls", "made.tar", cwd=here).stdout == b"a\ttxt\nsub/c\ttxt\n"


def test_folders_that_are_links_are_read(here):
    """Classes are often links to folders elsewhere; a link to a folder that it stands in is not followed."""
    for name in ("store/cat/1.txt", "files/dog/2.txt", "shards/own/a.tar"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("x")
    (here / "store" / "cat" / "again").symlink_to(here / "files", target_is_directory=True)
    (here / "files" / "cat").symlink_to(here / "store" / "cat", target_is_directory=True)
    (here / "files" / "dog" / "up").symlink_to("..", target_is_directory=True)
    done = run_wds("create", "-o", "made.tar", "files", cwd=here)
    assert run_wds("ls", "made.tar", cwd=here).stdout == b"cat/1\ttxt\ndog/2\ttxt\n", done.stderr
    (here / "linked").symlink_to(here / "shards", target_is_directory=True)
    (here / "all").mkdir()
    (here / "all" / "more").symlink_to(here / "linked" / "own", target_is_directory=True)
    (here / "shards" / "own" / "a.tar").write_bytes((here / "made.tar").read_bytes())
    assert run_wds("ls", "all", cwd=here).stdout == b"cat/1\ttxt\ndog/2\ttxt\n"


def test_create_from_a_pipe(here):
    """The recipe of the help text: names by find and awk."""
    script = """find . -name 's-*.tar' | sort | awk '{printf "%06d.bin %s\\n", NR, $0}' | wds create -o all.tar -"""
    done = shell(script + "; wds ls -l all.tar", here)
    assert len(done.stdout.splitlines()) == 3
    assert b"000001" in done.stdout


def test_proc_map_and_recompress(here):
    """Commands, functions and compressions in a shell; failures have the status of the table."""
    run_wds("proc", "cat sample.json > sample.txt", "-o", "p.tar", "s-0.tar", cwd=here)
    assert json.loads(run_wds("cat", "-k", "k01", "-f", "txt", "p.tar", cwd=here).stdout) == {"n": 1, "key": "k01"}
    done = run_wds("proc", "exit 3", "-o", "q.tar", "s-0.tar", cwd=here, status=exit_status.FAILED)
    assert b"status 3" in done.stderr
    assert not (here / "q.tar").exists()
    run_wds("proc", "exit 3", "--on-error", "keep", "-o", "q.tar", "s-0.tar", cwd=here, status=exit_status.PARTIAL)
    run_wds("diff", "q.tar", "s-0.tar", cwd=here)
    forgot = "\n\ndef forgot(sample):\n    sample['txt'] = b'x'\n"
    (here / "mine.py").write_text(
        "def odd(sample):\n    return sample if sample['__key__'][-1] in '13' else None\n" + forgot
    )
    done = run_wds("map", "mine:odd", "-o", "odd.tar", "s-*.tar", cwd=here)
    left_out = len(ALL) - len(keys("odd.tar", cwd=here))
    assert f"the function left out {left_out} of {len(ALL)} samples" in str(done.stderr)
    done = run_wds("map", "mine:forgot", "-o", "f.tar", "s-*.tar", cwd=here, status=exit_status.FAILED)
    assert b"None, or nothing, for every one of the" in done.stderr
    assert not (here / "f.tar").exists()
    assert keys("odd.tar", cwd=here) == [key for key in ALL if key[-1] in "13"]
    run_wds("map", "mine:none", "-o", "n.tar", "s-0.tar", cwd=here, status=exit_status.WRONG_USE)
    run_wds("recompress", "--to", "gz", "-o", "packed", "s-*.tar", cwd=here)
    run_wds("diff", "packed", "s-*.tar", cwd=here)
    run_wds("recompress", "--to", "gz", "-o", "packed", "s-*.tar", cwd=here, status=exit_status.FAILED)
    said = json_lines(run_wds("recompress", "--to", "gz", "-o", "told", "--json", "s-*.tar", cwd=here))
    for line in said:
        pytest.importorskip("jsonschema").validate(line, find_schemas()["recompress"])
    sizes = [(here / f"s-{number}.tar").stat().st_size for number in range(3)]
    assert [line["shard"] for line in said] == [f"told/s-{number}.tar.gz" for number in range(3)]
    assert [line["stream_bytes"] for line in said] == sizes


def test_mix(here):
    """A specification is mixed by its weights; one without an end needs --samples."""
    spec = {"version": 1, "sources": [{"shards": "s-0.tar", "weight": 3}, {"shards": "s-1.tar", "weight": 1}]}
    (here / "spec.json").write_text(json.dumps(spec))
    done = run_wds("mix", "spec.json", "-o", "m.tar", cwd=here, status=exit_status.WRONG_USE)
    assert b"--samples" in done.stderr
    run_wds("mix", "spec.json", "--samples", "40", "--seed", "1", "-o", "m-%d.tar", "-c", "30", cwd=here)
    found = keys("m-0.tar", cwd=here)
    assert len(found) == 30
    assert 15 < sum(key.startswith("k0") for key in found) < 30


@pytest.mark.parametrize(
    "specs", [["s-0.tar"], ["s-0.tar", "s-1.tar"], ["s3://bucket/x.tar.gz"], ["spec.json", "spec.json"]]
)
def test_mix_takes_a_specification(here, specs):
    """Shards in its place are told which command is theirs; a file that is no text is said to be none."""
    done = run_wds("mix", *specs, "-o", "m.tar", cwd=here, status=exit_status.WRONG_USE)
    assert b"takes one dataset specification" in done.stderr
    assert b"'wds shuffle'" in done.stderr
    (here / "s-0.tar").rename(here / "nameless")
    done = run_wds("mix", "nameless", "-o", "m.tar", cwd=here, status=exit_status.WRONG_USE)
    assert b"nameless:1:1: this is no text" in done.stderr
    assert done.stderr.count(b"\n") == 1
