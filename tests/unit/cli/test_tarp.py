"""``wds tarp``: the recipe of the seeds, tarp's documented pipelines and its options, through the real program."""

import collections
import subprocess

import click
import pytest

import webdataset as wds
from support.command import run_wds, shell
from webdataset.cli import exit_status
from webdataset.cli.main import load_command


def list_members(content):
    """The names of an archive's members, as ``tar tf -`` prints them."""
    return subprocess.run(["tar", "tf", "-"], input=content, stdout=subprocess.PIPE, check=True).stdout.decode().split()


def read_shard(path):
    """Key and fields of each sample."""
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"})
        for sample in wds.WebDataset(str(path), shardshuffle=False)
    ]


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Three shards of four samples: txt, cls (three values, so that sort values are equal) and jpg, or jpeg."""
    monkeypatch.chdir(tmp_path)
    for shard in range(3):
        with wds.TarWriter(f"in-{shard}.tar") as sink:
            for number in range(4):
                ordinal = 4 * shard + number
                image = "jpg" if ordinal % 2 else "jpeg"
                sink.write({"__key__": f"s{ordinal:02}", "txt": f"t{ordinal}", "cls": ordinal % 3, image: b"image"})
    return tmp_path


def test_recipe_of_tarp(tmp_path):
    """The four lines of tarp's own test, with a blank in a source: files, literals, commands; sizes 0, 4, 2 and 5."""
    (tmp_path / "recipe").write_text(
        "a.txt /dev/null\na.more.txt text:more\nb.txt pipe:echo b\nb.more.txt text:more2\n"
    )
    run_wds("tarp", "create", "-o", "out.tar", "recipe", cwd=tmp_path)
    assert read_shard(tmp_path / "out.tar") == [
        ("a", {"txt": b"", "more.txt": b"more"}),
        ("b", {"txt": b"b\n", "more.txt": b"more2"}),
    ]


def test_recipe_of_the_seeds(tmp_path):
    """The lines of the readme: NAME SOURCE, where the source is a file, text: or pipe:; from a file and from a pipe."""
    (tmp_path / "source-name-1").write_bytes(b"one")
    (tmp_path / "source name").write_bytes(b"two")
    recipe = "archive-name-1.a source-name-1\narchive-name-1.b file:source name\narchive-name-2.a text:some thing\n"
    (tmp_path / "recipe").write_text(recipe)
    done = run_wds("tarp", "create", "-o", "-", "recipe", cwd=tmp_path)
    assert list_members(done.stdout) == ["archive-name-1.a", "archive-name-1.b", "archive-name-2.a"]
    assert run_wds("tarp", "create", "-o", "-", "-", cwd=tmp_path, stdin=recipe.encode()).stdout == done.stdout


def test_recipe_of_a_command(tmp_path):
    """A recipe may come from pipe:, and then names literals and urls, but no files here."""
    done = run_wds("tarp", "create", "-o", "-", "pipe:echo a.txt text:b", cwd=tmp_path)
    assert list_members(done.stdout) == ["a.txt"]
    run_wds("tarp", "create", "-o", "x.tar", "pipe:echo a.txt /dev/null", cwd=tmp_path, status=exit_status.WRONG_USE)


def test_recipe_with_a_mistake(tmp_path):
    """A line without a source, and a command that fails, end the command; nothing is written."""
    for line in (b"a.txt\n", b"a.txt pipe:false\n", b"a.txt missing\n"):
        done = run_wds("tarp", "create", "-o", "x.tar", "-", cwd=tmp_path, stdin=b"k.txt text:k\n" + line, status=3)
        assert done.stderr
    assert (
        b"line 2"
        in run_wds("tarp", "create", "-o", "x.tar", "-", cwd=tmp_path, stdin=b"k.txt text:\na.txt\n", status=3).stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_recipe_whose_keys_come_again(tmp_path):
    """Lines keep their order; that a sample is cut in two is told."""
    recipe = b"a.txt text:1\nb.txt text:2\na.cls text:3\n"
    done = run_wds("tarp", "create", "-o", "-", "-", stdin=recipe)
    assert list_members(done.stdout) == ["a.txt", "b.txt", "a.cls"]
    assert b"1 samples have the key of an earlier one: a; where they are parts of one, put them together" in done.stderr
    assert b"a" in done.stderr


def test_shuffle_and_split_as_documented(shards):
    """The first pipeline of tarp's readme, with cat in place of a download: every sample comes out once."""
    done = shell("cat in-0.tar | wds tarp sort - -o - | wds tarp split -c 3 -o 'output-%06d.tar'", shards)
    assert done.returncode == 0, done.stderr
    assert [len(read_shard(shards / f"output-{number:06}.tar")) for number in range(2)] == [3, 1]
    both = read_shard(shards / "output-000000.tar") + read_shard(shards / "output-000001.tar")
    assert sorted(both) == read_shard(shards / "in-0.tar")


def test_folders_to_uploaded_shards_as_documented(tmp_path):
    """The second pipeline of tarp's readme: folders are classes, shards are uploaded and deleted."""
    for name, images in (("cat", "abc"), ("dog", "de")):
        (tmp_path / "in" / name).mkdir(parents=True)
        for image in images:
            (tmp_path / "in" / name / f"{image}.png").write_bytes(image.encode())
    (tmp_path / "bucket").mkdir()
    script = """
    cd in
    for classdir in *; do
        test -d $classdir || continue
        for image in $classdir/*.png; do
            imageid=$(basename $image .png)
            echo "$imageid.txt text:$classdir"
            echo "$imageid.png file:$image"
        done
    done |
    sort |
    wds tarp create -o - - |
    wds tarp split -c 2 -o 'dataset-%06d.tar' \\
        -p 'cp %s ../bucket/; rm %s'
    """
    done = shell(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "in").glob("*.tar"))
    read = [sample for path in sorted((tmp_path / "bucket").iterdir()) for sample in read_shard(path)]
    classes = {"a": b"cat", "b": b"cat", "c": b"cat", "d": b"dog", "e": b"dog"}
    assert read == [(key, {"png": key.encode(), "txt": name}) for key, name in classes.items()]
    assert len(list((tmp_path / "bucket").iterdir())) == 3


def test_failed_upload_keeps_the_shard(shards):
    """POST stops at its first failure, so that nothing is deleted that was not uploaded; the status says it."""
    post = "cp %s missing/; rm %s"
    done = run_wds("tarp", "split", "-c", "2", "-o", "out-%d.tar", "-p", post, "in-0.tar", status=exit_status.FAILED)
    assert b"--post" in done.stderr
    assert read_shard("out-0.tar") == read_shard("in-0.tar")[:2]
    assert not (shards / "out-1.tar").exists()


def test_split_bounds(shards):
    """No shard is larger than -s; both bounds have tarp's default values; 1e3 is a number."""
    run_wds("tarp", "split", "-s", "5e3", "-o", "small-%d.tar", "in-0.tar")
    sizes = [path.stat().st_size for path in shards.glob("small-*.tar")]
    assert max(sizes) <= 5000
    assert len(sizes) > 1
    run_wds("tarp", "split", "in-0.tar", "in-1.tar", "--slice", "1:7")
    assert [key for key, _ in read_shard("split-000000.tar")] == [f"s{number:02}" for number in range(1, 7)]


def test_cat_passes_members_as_they_stand(shards):
    """Without options, what goes in comes out; also through pipes, and without an input standard input is read."""
    content = (shards / "in-0.tar").read_bytes()
    assert run_wds("tarp", "cat", "-o", "-", "-", stdin=content).stdout == content
    assert run_wds("tarp", "cat", "-o", "-", stdin=content).stdout == content
    names = run_wds("tarp", "cat", "-o", "-", "in-{0..1}.tar").stdout
    assert len(list_members(names)) == 24


def test_fields(shards):
    """FIELDS keeps and renames: the first of several that is there; the order is that of FIELDS."""
    done = run_wds("tarp", "cat", "-f", "image.jpg:jpg,jpeg txt __key__", "-o", "-", "in-0.tar")
    assert list_members(done.stdout)[:4] == ["s00.image.jpg", "s00.txt", "s01.image.jpg", "s01.txt"]
    fields = "foo:txt"
    names = shell(f"fields={fields}; wds tarp cat -f $fields in-0.tar -o - | tar tf - | fgrep -v .png", shards)
    assert names.stdout.split() == [b"s00.foo", b"s01.foo", b"s02.foo", b"s03.foo"]


@pytest.mark.parametrize("command", ["cat", "sort"])
def test_samples_that_lack_a_field(shards, command):
    """They are an error; with --missing skip each is told, and the status is 4. None is dropped silently."""
    done = run_wds("tarp", command, "-f", "jpg", "-o", "x.tar", "in-0.tar", status=exit_status.FAILED)
    assert b"'jpg'" in done.stderr
    assert not (shards / "x.tar").exists()
    options = ("-f", "jpg", "--missing", "skip", "-o", "x.tar")
    done = run_wds("tarp", command, *options, "in-0.tar", status=exit_status.PARTIAL)
    assert b"left out: s00" in done.stderr
    assert sorted(read_shard("x.tar")) == [("s01", {"jpg": b"image"}), ("s03", {"jpg": b"image"})]


@pytest.mark.parametrize("fields", ["a:", ":a", "a a", "__key__", "x/y:txt", "b:txt,"])
def test_fields_that_make_no_sense(shards, fields):
    """They are refused before anything is written."""
    run_wds("tarp", "cat", "-f", fields, "-o", "x.tar", "in-0.tar", status=exit_status.WRONG_USE)


@pytest.mark.parametrize(
    ("text", "taken"), [("2:5", [2, 3, 4]), (":2", [0, 1]), ("10:", [10, 11]), ("1:9:3", [1, 4, 7])]
)
def test_slices(shards, text, taken):
    """--slice counts the samples of all inputs."""
    run_wds("tarp", "cat", "--slice", text, "-o", "x.tar", "in-{0..2}.tar")
    assert [key for key, _ in read_shard("x.tar")] == [f"s{number:02}" for number in taken]


@pytest.mark.parametrize("text", ["5", "a:b", "1:2:0", "-1:3", "1:2:3:4"])
def test_what_is_no_slice(shards, text):
    """Anything else is refused."""
    run_wds("tarp", "cat", f"--slice={text}", "-o", "x.tar", "in-0.tar", status=exit_status.WRONG_USE)


def test_lists_of_shards_and_their_slices(shards):
    """-l reads names of shards, --shardslice takes some of them, -m takes from several in turn."""
    (shards / "list").write_text("in-0.tar\nin-1.tar\nin-2.tar\n")
    run_wds("tarp", "cat", "-l", "list", "--shardslice", "1:3", "-m", "2", "-o", "x.tar")
    assert [key for key, _ in read_shard("x.tar")] == ["s04", "s08", "s05", "s09", "s06", "s10", "s07", "s11"]


def test_mix_opens_the_next_shard(shards):
    """When one of the shards that are mixed ends, the next takes its place; every sample comes once."""
    run_wds("tarp", "cat", "--mix", "2", "-o", "x.tar", "in-{0..2}.tar")
    keys = [key for key, _ in read_shard("x.tar")]
    assert keys[:2] == ["s00", "s04"]
    assert sorted(keys) == [f"s{number:02}" for number in range(12)]


def test_shuffle_and_rekey(shards):
    """A seed makes an order; '#' numbers samples after the shuffle, and keeps fields and payloads."""
    options = ("--shuffle=5", "--seed", "1", "-R", "#")
    run_wds("tarp", "cat", *options, "-o", "x.tar", "in-{0..2}.tar")
    read = read_shard("x.tar")
    assert [key for key, _ in read] == [f"{number:09}" for number in range(12)]
    texts = [fields["txt"] for _, fields in read]
    assert sorted(texts) == sorted(b"t%d" % number for number in range(12))
    assert texts != [b"t%d" % number for number in range(12)]
    again = run_wds("tarp", "cat", *options, "-o", "-", "in-{0..2}.tar")
    assert again.stdout == (shards / "x.tar").read_bytes()
    assert b"--seed" in run_wds("tarp", "cat", "-s", "5", "-o", "-", "in-0.tar").stderr
    run_wds("tarp", "cat", "-R", "x", "-o", "y.tar", "in-0.tar", status=exit_status.WRONG_USE)


def test_samples_of_one_key_are_not_joined(shards):
    """Two samples of one key next to each other would be read as one: that is an error, unless they get new keys."""
    (shards / "one.tar").write_bytes(run_wds("tarp", "create", "-o", "-", "-", stdin=b"k.a text:1\n").stdout)
    (shards / "two.tar").write_bytes(run_wds("tarp", "create", "-o", "-", "-", stdin=b"k.b text:2\n").stdout)
    for command in (("cat",), ("sort",), ("split",), ("proc", "-c", "true")):
        done = run_wds("tarp", *command, "-o", "x-%d.tar", "one.tar", "two.tar", status=exit_status.FAILED)
        assert b"read as one" in done.stderr
    run_wds("tarp", "cat", "-R", "#", "-o", "x.tar", "one.tar", "two.tar")
    assert read_shard("x.tar") == [("000000000", {"a": b"1"}), ("000000001", {"b": b"2"})]


def test_shards_that_fail(shards):
    """--maxerr allows so many; what is before the damage is kept, each is told, the status is 4."""
    cut = (shards / "in-1.tar").read_bytes()[:4000]
    (shards / "in-1.tar").write_bytes(cut)
    inputs = ("in-0.tar", "in-1.tar", "gone.tar", "in-2.tar")
    run_wds("tarp", "cat", "-o", "x.tar", *inputs, status=exit_status.FAILED)
    run_wds("tarp", "cat", "--maxerr", "1", "-o", "x.tar", *inputs, status=exit_status.FAILED)
    assert not (shards / "x.tar").exists()
    done = run_wds("tarp", "cat", "--maxerr", "2", "-o", "x.tar", *inputs, status=exit_status.PARTIAL)
    assert done.stderr.count(b"left out: ") == 2
    assert [key for key, _ in read_shard("x.tar")] == [f"s{number:02}" for number in (0, 1, 2, 3, 4, 8, 9, 10, 11)]


def test_sort_with_equal_values_loses_nothing(shards):
    """Samples of one class all come out, in the order in which they came."""
    run_wds("tarp", "sort", "-s", "cls", "-f", "cls txt", "-o", "x.tar", "in-{0..2}.tar")
    keys = [key for key, _ in read_shard("x.tar")]
    assert keys == [f"s{number:02}" for rest in range(3) for number in range(rest, 12, 3)]


def test_sort_by_a_field_that_is_not_written(shards):
    """The sort field need not be among FIELDS; bytes are compared; keys are fields, too."""
    run_wds("tarp", "sort", "-s", "txt", "-f", "cls", "-o", "x.tar", "in-{0..2}.tar")
    keys = [int(key[1:]) for key, _ in read_shard("x.tar")]
    assert keys == sorted(range(12), key=lambda number: f"t{number}")
    run_wds("tarp", "sort", "-s", "__key__", "--slice", "2:4", "-o", "y.tar", "x.tar")
    assert [key for key, _ in read_shard("y.tar")] == ["s10", "s11"]
    run_wds("tarp", "sort", "-s", "none", "-o", "z.tar", "x.tar", status=exit_status.FAILED)


def test_sort_is_a_full_shuffle_without_a_field(shards):
    """A seed makes the order, which is not that of the input; nothing is lost."""
    orders = [run_wds("tarp", "sort", "--seed", seed, "-o", "-", "in-{0..2}.tar").stdout for seed in ("1", "1", "2")]
    assert orders[0] == orders[1] != orders[2]
    names = collections.Counter(list_members(orders[0]))
    assert names == collections.Counter(list_members(run_wds("tarp", "cat", "-o", "-", "in-{0..2}.tar").stdout))


def test_proc_as_tarp_tests_it(shards):
    """A file that the command makes is a field of every sample; one that it deletes is none."""
    done = shell("wds tarp proc -c 'touch sample.foo 1>&2; rm sample.txt' in-0.tar -o - | tar tf -", shards)
    names = done.stdout.decode().split()
    assert sum(name.endswith(".foo") for name in names) == 4
    assert not any(name.endswith(".txt") for name in names)


def test_proc_sees_and_changes_the_key(shards):
    """sample.__key__ holds the key; what is written there is the new one. --shell runs the command."""
    command = 'printf "new-%s" $(cat sample.__key__) > sample.__key__; test -z "$BASH_VERSION" || exit 1'
    run_wds(
        "tarp", "proc", "-c", command, "--shell", "/bin/sh", "-f", "txt", "-o", "x.tar", "in-0.tar", BASH_VERSION=""
    )
    assert read_shard("x.tar")[0] == ("new-s00", {"txt": b"t0"})


def test_several_samples_of_one_as_tarp_tests_it(shards):
    """The loop of tarp's own test: ten samples of each, with the keys that the command gives them."""
    script = """
    wds tarp proc -m '
        for i in {0..9}; do
            (echo -n "$i-"; cat sample.__key__) | tee sample-00000$i.__key__ > sample-00000$i.txt
        done' in-0.tar -o - | tar tf -
    """
    names = shell(script, shards).stdout.decode().split()
    assert names == [f"{number}-s{sample:02}.txt" for sample in range(4) for number in range(10)]


def test_several_samples_have_numbers_for_keys(shards):
    """Without a key of their own they are KEY/000000; gaps are allowed anywhere."""
    command = "cp sample.txt sample-000001.txt; cp sample.txt sample-000500.txt"
    done = run_wds("tarp", "proc", "-m", command, "--slice", ":1", "-o", "-", "in-0.tar")
    assert list_members(done.stdout) == ["s00/000001.txt", "s00/000500.txt"]


@pytest.mark.parametrize("option", ["-c", "-m"])
def test_failing_command_fails(shards, option):
    """It ends with status 3 and writes nothing; --on-error skip tells what it leaves out, status 4."""
    command = "test $(cat sample.txt) != t2 && cp sample.txt sample-000000.txt"
    done = run_wds("tarp", "proc", option, command, "-o", "x.tar", "in-0.tar", status=exit_status.FAILED)
    assert b"s02" in done.stderr
    assert not (shards / "x.tar").exists()
    skip = ("--on-error", "skip", "-o", "x.tar")
    done = run_wds("tarp", "proc", option, command, *skip, "in-0.tar", status=exit_status.PARTIAL)
    assert b"left out: s02" in done.stderr
    assert len(read_shard("x.tar")) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-c", "rm sample.*"), b"sample.FIELD"),
        (("-m", "true"), b"sample-000000.FIELD"),
        (("-m", "echo x > sample-000000.__key__"), b"sample-000000.FIELD"),
        (("-c", "echo a.b > sample.__key__"), b"cannot be a key"),
        (("-m", "touch sample-0.txt sample-000000.txt"), b"twice"),
    ],
)
def test_commands_that_leave_no_sample(shards, options, message):
    """What would lose a sample silently is an error."""
    assert message in run_wds("tarp", "proc", *options, "-o", "x.tar", "in-0.tar", status=exit_status.FAILED).stderr


def test_one_command_is_needed(shards):
    """Either -c or -m."""
    run_wds("tarp", "proc", "-o", "x.tar", "in-0.tar", status=exit_status.WRONG_USE)
    run_wds("tarp", "proc", "-c", "true", "-m", "true", "-o", "x.tar", "in-0.tar", status=exit_status.WRONG_USE)


@pytest.mark.parametrize("url", ["zpush://h:1", "zrpull://h:1", "zpull+ipc://x", "zrsub+tcp://h:1", "zpub://h:1"])
def test_zmq_is_refused(shards, url):
    """Inputs and outputs of ZMQ are an error of usage that names what to use."""
    for arguments in ((url, "-o", "x.tar"), ("in-0.tar", "-o", url)):
        done = run_wds("tarp", "cat", *arguments, status=exit_status.WRONG_USE)
        assert b"ZMQ" in done.stderr
        assert b"pipe" in done.stderr


def test_outputs(shards):
    """-o is needed, nothing is replaced without --force, a dry run writes nothing, -v tells what was written."""
    assert b"-o" in run_wds("tarp", "cat", "in-0.tar", status=exit_status.WRONG_USE).stderr
    before = (shards / "in-1.tar").read_bytes()
    run_wds("tarp", "cat", "in-0.tar", "-o", "in-1.tar", status=exit_status.FAILED)
    assert b"would write" in run_wds("tarp", "cat", "in-0.tar", "-n", "-F", "-o", "in-1.tar").stderr
    assert (shards / "in-1.tar").read_bytes() == before
    assert b"wrote in-1.tar (4 samples)" in run_wds("tarp", "-v", "cat", "-F", "in-0.tar", "-o", "in-1.tar").stderr
    done = run_wds("tarp", "cat", "-L", "2", "-E", "in-0.tar", "--json", "-o", "y.tar")
    assert done.stdout == b'{"shard": "y.tar", "samples": 4}\n'
    assert done.stderr.splitlines() == [b"wds: 2 s01", b"wds: 4 s03"]
    run_wds("tarp", "split", "-n", "-p", "touch ran", "-o", "z-%d.tar", "in-0.tar")
    assert not (shards / "ran").exists()


@pytest.mark.parametrize("name", ["create", "cat", "proc", "sort", "split"])
def test_help_of_each_command(name):
    """Each option is explained, and examples call the command."""
    command = load_command("tarp").commands[name]
    assert f"  wds tarp {name}" in command.help or f"| wds tarp {name}" in command.help
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))
