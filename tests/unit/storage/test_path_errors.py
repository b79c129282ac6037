"""What an error of a local path says to do next."""

import errno
import os
import subprocess
import sys

import pytest

import webdataset as wds
from webdataset.core.errors import NotFound, SourceError
from webdataset.storage.backends.s3_errors import translate_error
from webdataset.storage.path_errors import suggest_object, translate_os_error


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with three shards, in which a folder is not there."""
    monkeypatch.chdir(tmp_path)
    for number in (0, 1, 10):
        with wds.TarWriter(f"s-{number}.tar") as sink:
            sink.write({"__key__": "a", "txt": "x"})
    (tmp_path / "labels.tar").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("s-000.tar", "the folder has 's-0.tar' to 's-10.tar'"),
        ("s-11.tar", "the folder has 's-0.tar' to 's-10.tar'"),
        ("lables.tar", "did you mean 'labels.tar'?"),
        ("none/s-0.tar", "there is no folder 'none' (the working directory is "),
        ("unlike", "(the working directory is "),
    ],
)
def test_a_missing_file_names_what_is_beside_it(path, hint, folder):
    """Other numbers of digits, ranges that are too long, folders that are elsewhere: all are seen at once."""
    with pytest.raises(NotFound) as raised:
        list(wds.WebDataset(path, shardshuffle=False))
    assert hint in str(raised.value)
    assert ("working directory" in hint) is (str(folder) in str(raised.value))
    assert raised.value.errno == errno.ENOENT


def test_a_missing_file_in_an_absolute_path_names_no_working_directory(folder):
    """It is not part of the path."""
    with pytest.raises(NotFound) as raised:
        wds.gopen(str(folder / "none" / "a.tar"))
    assert "there is no folder" in str(raised.value)
    assert "working directory" not in str(raised.value)


def test_a_writer_without_its_folder_says_to_make_it(folder):
    """It has no neighbours to suggest."""
    with pytest.raises(NotFound, match=r"there is no folder 'none' \(.*\): make it first"):
        wds.TarWriter("none/s-0.tar")
    assert sorted(os.listdir(folder)) == ["labels.tar", "s-0.tar", "s-1.tar", "s-10.tar"]


def test_a_working_directory_that_is_gone(folder):
    """The error is still that of the path."""
    program = (
        "import os, shutil, webdataset as wds\n"
        "os.makedirs('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "try: wds.gopen('a.tar')\nexcept wds.WebDatasetError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot open: No such file or directory")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.EACCES, "look at its owner and permissions: ls -ld a.tar"),
        (errno.ENOSPC, "free some space"),
        (errno.EMFILE, "raise the limit of the process: ulimit -n"),
        (errno.EISDIR, "name the files in it: a.tar/*.tar"),
        (errno.EIO, None),
    ],
)
def test_each_refusal_of_the_system_has_its_advice(code, hint):
    """Those without any keep the system's words alone."""
    error = translate_os_error(OSError(code, os.strerror(code)), "a.tar", "write")
    assert type(error) is SourceError
    assert error.errno == code
    assert str(error).startswith(f"cannot write: {os.strerror(code)}" + (f"; {hint}" if hint else " ("))


def answer(code, message, status):
    """Return an error as botocore raises it."""
    error = Exception(message)
    error.response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return error


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s3://b/train/9.tar", "wds.expand_urls('s3://b/train/') lists what is there"),
        ("s3://b/train", "the url of a folder ends with a slash"),
        ("s3://b/x*.tar", "no object matches this wildcard"),
        ("s3://b/a/9.tar?versionId=7", "wds.expand_urls('s3://b/a/') lists what is there"),
    ],
)
def test_an_object_that_is_not_there_says_where_to_look(url, hint):
    """It is mostly a wrong number, a folder without its slash, or a wildcard."""
    assert hint in suggest_object(url)
    error = translate_error(answer("NoSuchKey", "The specified key does not exist.", 404), url)
    assert type(error) is NotFound
    assert str(error).startswith("the service answered 404 NoSuchKey: The specified key does not exist; ")
    assert hint in str(error)


def test_a_secret_in_a_url_is_in_no_advice():
    """The url is redacted there, as it is elsewhere."""
    assert "hidden" not in suggest_object("https://user:hidden@host/folder/a.tar")
