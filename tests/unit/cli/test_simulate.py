"""``wds simulate``."""

import json

import jsonschema  # type: ignore[import-untyped]
import pytest

import webdataset as wds
from support.command import run_wds
from webdataset.cli.simulate import SCHEMAS


@pytest.fixture
def shards(tmp_path):
    """Two shards of ten samples."""
    for number in range(2):
        with wds.TarWriter(str(tmp_path / f"s-{number}.tar")) as sink:
            for index in range(10):
                sink.write({"__key__": f"{number}-{index}", "bin": bytes(100), "cls": index})
    return tmp_path


def test_a_forecast(shards):
    """Rates are measured, kept and used again; the settings of the job are those of the command line."""
    rates = shards / "rates.json"
    words = ["simulate", f"{shards}/s-{{0..1}}.tar", "--streams", "16", "--shuffle", "160", "--ranks", "4"]
    measured = run_wds(*words, "--save-rates", str(rates), "--workers", "2", "--measure-seconds", "0.1")
    lines = dict(line.split(maxsplit=1) for line in measured.stdout.decode().splitlines())
    assert lines["job"] == "4 ranks on 1 host, 8 processes that read"
    assert "advice: there are 0.125 shards for each stream" in measured.stderr.decode()
    again = run_wds(*words, "--rates", str(rates), "--pretend-shards", "1600", "--samples-per-second", "10", "--json")
    found = json.loads(again.stdout)
    jsonschema.validate(found, SCHEMAS["simulate"])
    assert (found["bottleneck"], found["samples_per_second"]) == ("trainer", 40)
    assert found["epoch_bytes"] == 1600 * 21504
    assert found["state_bytes"] > 16 * 100


def test_wrong_use(shards):
    """Rates that are none, and settings that cannot be, are refused in a line."""
    path = f"{shards}/s-0.tar"
    (shards / "rates.json").write_text("{}")
    refused = run_wds("simulate", path, "--rates", f"{shards}/rates.json", status=2)
    assert refused.stderr.startswith(b"wds: no rates of version 1")
    assert b"wds simulate DATASET --save-rates FILE" in refused.stderr
    refused = run_wds("simulate", path, "--rates", f"{shards}/absent.json", status=3)
    assert refused.stderr.startswith(b"wds: cannot open: No such file or directory")
    assert b"x>=1" in run_wds("simulate", path, "--ranks", "0", status=2).stderr
    assert b"batched" in run_wds("simulate", path, "--batch", "4", status=2).stderr
