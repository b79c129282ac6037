"""``wds doctor``: what it says of the machine, and that it shows no secret."""

import os
from pathlib import Path

import pytest

import webdataset as wds
from support.command import json_lines, run_wds
from webdataset.cli import exit_status
from webdataset.cli.doctor import examine_machine, mask_setting
from webdataset.cli.schema import find_schemas
from webdataset.core import settings

jsonschema = pytest.importorskip("jsonschema")
PLANTED = "PLANTEDw0rd"


def doctor(status=0, **environment):
    """Return what is printed as JSON; fail where the planted secret is in any output."""
    for options in ((), ("--json",)):
        done = run_wds("doctor", *options, status=status, **environment)
        assert PLANTED not in (done.stdout + done.stderr).decode()
    (value,) = json_lines(done)
    jsonschema.Draft202012Validator(find_schemas()["doctor"]).validate(value)
    return value


def test_machine_and_packages(tmp_path):
    """Processors, open files, start method, and the free space of a cache that is not made yet."""
    value = doctor(WDS_CACHE=str(tmp_path / "later" / "cache"))
    assert value["cpus"] == len(os.sched_getaffinity(0))
    assert value["start_method"] in ("fork", "spawn", "forkserver")
    assert value["cache_free_bytes"] > 0
    assert not (tmp_path / "later").exists()
    assert value["settings"]["WDS_CACHE"] == str(tmp_path / "later" / "cache")


def test_secrets_are_masked():
    """Every variable of the library that may hold a secret, profiles of variables, and logins in urls."""
    secrets = {
        "HF_TOKEN": PLANTED,
        "HUGGING_FACE_HUB_TOKEN": PLANTED,
        "AIS_AUTHN_TOKEN": PLANTED,
        "AZURE_STORAGE_KEY": PLANTED,
        "AZURE_STORAGE_ACCOUNT_KEY": PLANTED,
        "AZURE_STORAGE_SAS_TOKEN": f"sig={PLANTED}",
        "AZURE_STORAGE_CONNECTION_STRING": f"AccountKey={PLANTED}",
        "WDS_S3_MINE_ACCESS_KEY_ID": PLANTED,
        "WDS_S3_MINE_SECRET_ACCESS_KEY": PLANTED,
        "WDS_S3_MINE_SESSION_TOKEN": PLANTED,
    }
    value = doctor(**secrets, WDS_REWRITE=f"a=http://me:{PLANTED}@host", AIS_ENDPOINT=f"http://me:{PLANTED}@h")
    assert {name: value["settings"][name] for name in secrets} == dict.fromkeys(secrets, "***")
    assert value["settings"]["AIS_ENDPOINT"] == "http://***@h"


def test_no_setting_with_a_secret_is_forgotten():
    """A variable whose meaning says that it is a token, key or signature is masked."""
    known = [each for each in vars(settings).values() if isinstance(each, settings.EnvironmentVariable)]
    words = ("token for", "key of that account", "its key or signature", "shared access signature")
    telling = [each.name for each in known if any(word in each.meaning for word in words)]
    assert len(telling) >= 6
    shown = {name: mask_setting(name, PLANTED) for name in telling}
    assert {name for name, text in shown.items() if text == PLANTED} == {"HF_TOKEN_PATH", "AIS_AUTHN_TOKEN_FILE"}


def test_wrong_settings_are_problems():
    """A setting that cannot be read is a finding."""
    value = doctor(status=exit_status.NONE_FOUND, WDS_CACHE_SIZE="many")
    assert "WDS_CACHE_SIZE" in value["problems"][0]


def test_misspelt_settings_are_hints():
    """They do nothing, and nothing else says so; variables of profiles and of specifications are the user's own."""
    value = doctor(WDS_SECUR="1", WDS_S3_CACHE_REGION="x", WDS_DATA_FOLDER="y", WDS_SECURE="0")
    told = [hint for hint in value["hints"] if "WDS_" in hint]
    assert told == ["WDS_SECUR is set, and is no setting of this library; did you mean WDS_SECURE?"]


def test_missing_extras_come_with_a_way_to_install_them(monkeypatch):
    """The line for pip names the extra."""
    lines = ["numpy>=1", "nothing-of-this-name>=2; extra == 'odd'", "webdataset[odd]; extra == 'all'", "gone>=1"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: lines)
    found = examine_machine()
    assert found["extras"] == {"odd": {"nothing-of-this-name": None}}
    checkout = Path(wds.__file__).parents[2]
    assert f"pip install -e '{checkout}[odd]'" in found["hints"][0]
    assert found["problems"] == [f"package gone is missing: pip install -e {checkout}"]
