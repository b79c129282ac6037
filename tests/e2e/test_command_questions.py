"""Questions of a new user, answered by the executable alone, in at most three commands that its help shows."""

import random
import tarfile

import pytest

from support import check_payloads
from support.command import json_lines, run_wds
from support.command_help import is_shown
from webdataset.testing import archives


class Terminal:
    """Runs commands that the help shows, and counts them.

    Args:
        folder: where they run.
    """

    def __init__(self, folder):
        self.folder = folder
        self.calls = 0

    def run(self, *arguments, status=0):
        """Run one."""
        assert is_shown(list(arguments)), f"no example is like {arguments}"
        self.calls += 1
        assert self.calls <= 3
        return run_wds(*arguments, cwd=self.folder, status=status)


@pytest.fixture
def terminal(tmp_path):
    """A folder to run commands in."""
    return Terminal(tmp_path)


def write(folder, count, samples, *, broken=None):
    """Write shards of pictures and labels; in one sample the picture is cut."""
    rng = random.Random(3)
    pictures = [check_payloads.good("jpg", rng) for _ in range(8)]
    keys = []
    for shard in range(count):
        members = []
        for number in range(samples):
            key = f"{shard:03}-{number:02}"
            picture = pictures[number % 8]
            members += [
                (f"{key}.jpg", picture[:60] if key == broken else picture),
                (f"{key}.cls", b"%d" % (shard % 10)),
            ]
            keys.append(key)
        (folder / f"train-{shard:06}.tar").write_bytes(archives.by_hand(members))
    return keys


def test_the_broken_sample_in_200_shards(terminal, tmp_path):
    """One command finds it, the next one shows it: which shard, which sample, which field, and why."""
    write(tmp_path, 200, 5, broken="137-03")
    found = terminal.run("check", "train-{000000..000199}.tar", status=1).stdout.decode().splitlines()
    assert len(found) == 2
    assert found[0].startswith("train-000137.tar:")
    assert "137-03" in found[0]
    assert "jpg" in found[0]
    assert found[1].startswith("200 shards, 1000 samples: 1 error")
    cut = terminal.run("cat", "--key", "137-03", "--field", "jpg", "train-000137.tar").stdout
    assert len(cut) == 60


def test_three_shards_to_ten_with_a_global_shuffle(terminal, tmp_path):
    """Ten shards of one size, every sample once, each shard of all the old ones; the bytes of fields stay."""
    keys = write(tmp_path, 3, 100)
    terminal.run("reshard", "--shards", "10", "--shuffle", "--seed", "1", "-o", "new-%04d.tar", "train-*.tar")
    made = sorted(tmp_path.glob("new-*.tar"))
    lists = []
    for path in made:
        with tarfile.open(path) as archive:
            lists.append([name[:-4] for name in archive.getnames() if name.endswith(".jpg")])
    assert [len(each) for each in lists] == [30] * 10
    order = [key for each in lists for key in each]
    assert sorted(order) == keys
    assert order != keys
    assert all(len({key[:3] for key in each}) == 3 for each in lists)
    assert b"error" not in terminal.run("check", "new-{0000..0009}.tar").stdout.replace(b"0 errors", b"")


def test_what_is_in_a_directory_of_shards(terminal, tmp_path):
    """How many samples, which fields, how large; then the samples themselves."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    keys = write(tmp_path / "data" / "deep", 2, 4)
    (tmp_path / "data" / "notes.txt").write_text("no shard")
    told = terminal.run("info", "data").stdout.decode()
    assert "8" in told
    assert "jpg" in told
    assert "cls" in told
    listed = terminal.run("ls", "--json", "data")
    assert [row["key"] for row in json_lines(listed)] == keys
    head = terminal.run("head", "data").stdout.decode()
    assert "000-00" in head
