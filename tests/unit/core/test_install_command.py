"""The command that installs an extra names where this package came from, not the package of the same name elsewhere."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.core.optional_imports import install_command

PACKAGE = Path(wds.__file__).parent
NOT_COPIED = shutil.ignore_patterns("__pycache__", "viewer", "serving", "cluster", "reshaping")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of installed packages that holds a copy of this one, and what pip records of it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / "webdataset", ignore=NOT_COPIED)
    (folder / "webdataset-2.0.0.dev0.dist-info").mkdir()
    return folder


def ask_installed(site, source, extra="s3"):
    """Return what an installed copy says to a program, by what pip recorded of its source."""
    record = site / "webdataset-2.0.0.dev0.dist-info"
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: webdataset\nVersion: 2.0.0.dev0\n")
    record.joinpath("direct_url.json").unlink(missing_ok=True)
    if source is not None:
        (record / "direct_url.json").write_text(source if isinstance(source, str) else json.dumps(source))
    code = f"from webdataset.core.optional_imports import install_command as c; print(c({extra!r}))"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_a_checkout_that_runs_in_place_is_named_by_its_path():
    """So it is with the package that this test runs; it stays editable."""
    checkout = PACKAGE.parents[1]
    assert (checkout / "pyproject.toml").is_file()
    assert shlex.split(install_command("s3,fast")) == ["pip", "install", "-e", f"{checkout}[s3,fast]"]
    assert shlex.split(install_command()) == ["pip", "install", "-e", str(checkout)]


def test_a_checkout_that_was_installed_is_named_by_its_path(site, tmp_path):
    """Blanks in the path and its percent signs in the record are handled."""
    clone = tmp_path / "my clone"
    clone.mkdir()
    source = {"dir_info": {}, "url": clone.as_uri()}
    assert "%20" in source["url"]
    assert shlex.split(ask_installed(site, source)) == ["pip", "install", f"{clone}[s3]"]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (None, "webdataset[s3]==2.0.0.dev0"),
        ("{ damaged", "webdataset[s3]==2.0.0.dev0"),
        ({"dir_info": {}, "url": "file:///no/such/clone"}, "webdataset[s3]==2.0.0.dev0"),
        (
            {"vcs_info": {"vcs": "git", "commit_id": COMMIT}, "url": "https://me:PLANTEDw0rd@host.example/wds.git"},
            f"webdataset[s3] @ git+https://***@host.example/wds.git@{COMMIT}",
        ),
        (
            {"archive_info": {}, "url": "https://host.example/webdataset-2.0.0.dev0.whl"},
            "webdataset[s3] @ https://host.example/webdataset-2.0.0.dev0.whl",
        ),
    ],
)
def test_other_sources(site, source, named):
    """A repository and a file on a server by their url; what is gone or was not recorded, by the version."""
    assert shlex.split(ask_installed(site, source)) == ["pip", "install", named]


def test_a_copy_that_was_not_installed(site):
    """Without a record, the version of the package itself is named."""
    shutil.move(site / "webdataset-2.0.0.dev0.dist-info", site / "aside")
    try:
        code = "import webdataset; from webdataset.core import optional_imports as o; print(o.install_command('s3'))"
        environment = {**os.environ, "PYTHONPATH": str(site)}
        run = [sys.executable, "-S", "-c", code]
        done = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    finally:
        shutil.move(site / "aside", site / "webdataset-2.0.0.dev0.dist-info")
    assert shlex.split(done.stdout) == ["pip", "install", f"webdataset[s3]=={wds.__version__}"]
