"""An installation for editing compiles the core; programs that run meanwhile find one at any time."""

import importlib.util
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "hatch_build.py"


@pytest.fixture(scope="module")
def build() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("hatch_build", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(build: Any, root: Path) -> list[str]:
    """Run the hook of an installation for editing; return its warnings."""
    told: list[str] = []
    app = SimpleNamespace(display_warning=told.append)
    build.NativeCore(str(root), {}, None, None, str(root), "wheel", app).initialize("editable", {"force_include": {}})
    return told


def test_the_old_module_stays_until_the_new_one_is_there(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is compiled, and while it is written."""
    target = tmp_path / "src" / build.COMPILED
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    contents = [b"old", b"new" * 500_000]
    seen: list[bytes] = []

    def compile_module(folder: Path) -> bytes:
        seen.append(target.read_bytes())
        return contents[1]

    monkeypatch.delenv("WDS_NATIVE", raising=False)
    monkeypatch.setattr(build, "compile_module", compile_module)
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            seen.append(target.read_bytes())

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(50):
        assert install(build, tmp_path) == []
        assert target.read_bytes() == contents[1]
        # one that runs keeps the file it has loaded
        before = target.stat().st_ino
        build.publish_module(target, b"old")
        assert target.stat().st_ino != before
    ended.set()
    watcher.join()
    assert set(seen) <= set(contents)
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_the_same_module_is_not_written_again(build: Any, tmp_path: Path) -> None:
    """Nothing changes for processes that have it."""
    build.publish_module(tmp_path / "a.so", b"same")
    before = (tmp_path / "a.so").stat()
    build.publish_module(tmp_path / "a.so", b"same")
    after = (tmp_path / "a.so").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert before.st_mode & 0o777 == 0o755


@pytest.mark.parametrize("how", ["no compiler", "not wanted"])
def test_without_a_compiler_no_older_module_stays(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It would be used, though its source is another one."""
    target = tmp_path / "src" / build.COMPILED
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    monkeypatch.setenv("WDS_NATIVE", "0" if how == "not wanted" else "")

    def fail(folder: Path) -> bytes:
        raise OSError("no compiler")

    monkeypatch.setattr(build, "compile_module", fail)
    assert len(install(build, tmp_path)) == (how == "no compiler")
    assert not target.exists()
