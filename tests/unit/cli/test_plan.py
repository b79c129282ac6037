"""``wds plan``: what it prints is what :mod:`webdataset.loading.read_plan` says."""

import pytest

import webdataset as wds
from support.command import json_lines, run_wds
from webdataset.cli import exit_status
from webdataset.cli.schema import find_schemas

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five shards of 4 samples, and a module with a dataset."""
    folder = tmp_path_factory.mktemp("plan")
    for number in range(5):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(4):
                sink.write({"__key__": f"{number}-{index}", "cls": index})
    source = 'import webdataset as wds\ndef make():\n    return wds.WebDataset("s-{0..4}.tar", resampled=True)\n'
    (folder / "train.py").write_text(source, encoding="utf-8")
    return folder


def plan(folder, *arguments):
    """Return the plan that is printed as JSON."""
    (value,) = json_lines(run_wds("plan", *arguments, "--json", cwd=folder))
    jsonschema.Draft202012Validator(find_schemas()["plan"]).validate(value)
    return value


def test_table(folder):
    """A line for each worker; warnings on standard error."""
    done = run_wds("plan", "s-{0..4}.tar", "--ranks", "2", "--workers", "3", "--count", cwd=folder)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "5 shards, 20 samples; 2 ranks of 3 workers"
    assert [line.split() for line in lines[2:4]] == [["0", "0", "1", "4"], ["0", "1", "1", "4"]]
    assert len(lines) == 2 + 6
    assert b"1 of 6 workers have nothing to read" in done.stderr


def test_json(folder):
    """Each way of sharing out gives every sample to one worker."""
    for options in ([], ["--by-sample"], ["--streams", "12"], ["--shard-shuffle", "9", "--seed", "1"]):
        value = plan(folder, "s-{0..4}.tar", *options, "--ranks", "2", "--workers", "2", "--count")
        assert sum(worker["samples"] for worker in value["workers"]) == 20
    assert plan(folder, "s-{0..4}.tar")["samples"] is None


def test_counts_in_a_file(folder):
    """Numbers of samples come from a file of them."""
    counts = folder / "counts.json"
    counts.write_text('{"s-0.tar": 7, "s-1.tar": 5}', encoding="utf-8")
    value = plan(folder, "s-0.tar", "s-1.tar", "--ranks", "2", "--counts", "counts.json")
    assert [worker["samples"] for worker in value["workers"]] == [7, 5]


def test_long(folder):
    """``-l`` lists shards, and which part of them."""
    text = run_wds("plan", "-l", "--streams", "2", "s-{0..2}.tar", cwd=folder).stdout.decode()
    assert "  stream 0  s-0.tar" in text
    assert "(one of 2, from 1)" in text


def test_secrets_of_urls_are_not_shown(folder):
    """``-l`` leaves passwords and signatures out; JSON has urls as they are opened."""
    url = "pipe:cat s-0.tar; : token=hush"
    text = run_wds("plan", "-l", url, cwd=folder).stdout
    assert b"token=***" in text
    assert b"hush" not in text
    assert url in str(plan(folder, url)["workers"])


def test_a_function(folder):
    """A dataset of the user's own is planned too."""
    assert "drawn with replacement" in plan(folder, "train:make")["warnings"][0]


def test_mistakes(folder):
    """Options that belong to shards are refused beside a function; so are fewer streams than ranks."""
    run_wds("plan", "train:make", "--by-sample", cwd=folder, status=exit_status.WRONG_USE)
    wrong = run_wds("plan", "s-0.tar", "--streams", "2", "--ranks", "3", cwd=folder, status=exit_status.WRONG_USE)
    assert b"cannot be shared out" in wrong.stderr
