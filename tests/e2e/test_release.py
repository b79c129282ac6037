"""``make wheels``: the files that are released build twice to the same bytes, and hold what they must."""

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_is_reproducible_and_complete(tmp_path):
    """The script compares two builds; the wheel has code, types and the viewer's page, and no tests; the sums hold."""
    command = [sys.executable, str(ROOT / "scripts" / "release.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    sums = dict(reversed(line.split("  ")) for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert len(sums) == 2
    for name, digest in sums.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "webdataset/py.typed",
        "webdataset/__init__.pyi",
        "webdataset/viewer/static/app.js",
        "wids/__init__.py",
    ):
        assert needed in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "support/", "bench/")) for name in names)
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "constraints.txt", "Makefile", "tests/conftest.py"} <= held
    assert not any(name.startswith((".venv", ".oracles", ".servers", "build/")) for name in held)
