"""``wds.map_shards``: forms of functions, outputs of N inputs, errors of samples, what is made again and what not."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from support import mapped
from support.mapped import make_shards, read_outputs
from webdataset.cluster import map_shards as mapping
from webdataset.cluster import receipts, shard_tasks
from webdataset.cluster.job_engines import SerialEngine
from webdataset.cluster.receipts import receipt_url
from webdataset.cluster.shard_jobs import ShardJob
from webdataset.cluster.stored_files import identify_object
from webdataset.core.errors import JobFailed, NoShards, NotFound, UsageError

COUNTS = [7, 0, 12, 1, 5, 30]


@pytest.fixture
def shards(tmp_path):
    """Six shards, one of them empty."""
    return make_shards(tmp_path / "in", COUNTS)


def list_samples(folder):
    """Return key and fields of every sample of a folder's shards, in order."""
    names = sorted(str(path) for path in Path(folder).glob("*.tar"))
    reader = wds.WebDataset(names, shardshuffle=False, empty_check=False)
    return [(sample["__key__"], {k: v for k, v in sample.items() if k[0] != "_"}) for sample in reader]


def test_samples_are_dropped_doubled_changed_and_kept(shards, tmp_path):
    """The outputs hold what the function returns, in order; several results of one key are numbered."""
    report = wds.map_shards(mapped.vary, shards, f"{tmp_path}/out/")
    expected = []
    for number in range(sum(COUNTS)):
        made = mapped.vary({"__key__": f"{number:05d}", "txt": b"%d" % number, "bin": b"%d" % number * (number % 40)})
        several = made if isinstance(made, list) else [made] if made else []
        for place, each in enumerate(several):
            key = f"{number:05d}" + (f"-{place}" if len(several) > 1 else "")
            fields = {k: v.encode() if isinstance(v, str) else v for k, v in each.items() if k[0] != "_"}
            expected.append((key, fields))
    assert list_samples(tmp_path / "out") == expected
    dropped = sum(number % 7 == 0 for number in range(sum(COUNTS)))
    assert report.counts == {"in": 55, "out": len(expected), "dropped": dropped, "errors": 0, "loose": 0}
    assert [Path(url).name for url in report.outputs.values()] == [Path(name).name for name in shards]


def test_a_kept_sample_stands_as_it_stood(shards, tmp_path):
    """A function that returns its sample copies the shard byte by byte."""
    wds.map_shards(mapped.keep, shards, f"{tmp_path}/out/")
    for name in shards:
        assert (tmp_path / "out" / Path(name).name).read_bytes() == Path(name).read_bytes()


@pytest.mark.parametrize("outputs", [1, 2, 3, 7, 54, 55, 60])
def test_outputs_of_all_samples(shards, tmp_path, outputs):
    """M outputs get equal parts of all samples, in order; with more outputs than samples some are empty."""
    wds.map_shards(mapped.keep, shards, f"{tmp_path}/out/%03d.tar", output_shards=outputs)
    found = [
        json.loads(Path(receipt_url(f"{tmp_path}/out/{j:03d}.tar")).read_text())["counts"]["out"]
        for j in range(outputs)
    ]
    assert found == [55 * (j + 1) // outputs - 55 * j // outputs for j in range(outputs)]
    assert [key for key, _ in list_samples(tmp_path / "out")] == [f"{number:05d}" for number in range(55)]


@pytest.mark.parametrize("kind", ["index", "sizes", "too few", "too many"])
def test_counts_beside_the_shards(shards, tmp_path, kind):
    """Indexes and sizes.json save the counting; a count that is wrong is an error, and no sample is lost."""
    shards = [name for name, count in zip(shards, COUNTS, strict=True) if count]
    if kind == "index":
        wds.write_indexes(shards, "dali")
    else:
        wrong = {"sizes": 0, "too few": -1, "too many": 1}[kind]
        sizes = {f"{number:03d}.tar": count for number, count in enumerate(COUNTS)}
        sizes["002.tar"] += wrong
        (tmp_path / "in/sizes.json").write_text(json.dumps(sizes))
    job = lambda: wds.map_shards(mapped.keep, shards, f"{tmp_path}/out/%03d.tar", output_shards=4)  # noqa: E731
    if kind.startswith("too"):
        with pytest.raises(JobFailed, match="more or fewer samples"):
            job()
        return
    assert job().counts["in"] == 55
    assert not (tmp_path / "out/_wds/counts").exists()
    assert [key for key, _ in list_samples(tmp_path / "out")] == [f"{number:05d}" for number in range(55)]


@pytest.mark.parametrize("tasks", [1, 3, 5, 9])
def test_any_number_of_tasks_makes_the_same(shards, tmp_path, tasks):
    """N tasks, in any order, in one process or several, write the bytes of one: n below, at and above M."""
    one, other = tmp_path / "one", tmp_path / "other"
    wds.map_shards(mapped.vary, shards, f"{one}/%d.tar", output_shards=5)
    for place in reversed(range(tasks)):
        engine = "processes" if place == 1 else "serial"
        wds.map_shards(
            mapped.vary, shards, f"{other}/%d.tar", output_shards=5, task=(place, tasks), engine=engine, jobs=2
        )
    assert read_outputs(one) == read_outputs(other)


def test_processes_make_the_same_and_a_second_run_makes_nothing(shards, tmp_path, capfd):
    """Two processes write the bytes of one, with errors in quarantine; the second run skips everything."""
    one, other = tmp_path / "one", tmp_path / "other"
    rules: Any = {"on_sample_error": "quarantine"}
    wds.map_shards(mapped.fail_some, shards, f"{one}/", **rules)
    made = wds.map_shards(mapped.fail_some, shards, f"{other}/", engine="processes", jobs=2, **rules)
    assert len(made.done) == 6
    assert made.counts["errors"] == 6
    assert read_outputs(one) == read_outputs(other)
    before = {path: path.stat().st_mtime_ns for path in other.rglob("*.tar")}
    again = wds.map_shards(mapped.fail_some, shards, f"{other}/", engine="processes", jobs=2, **rules)
    assert (len(again.done), len(again.skipped)) == (0, 6)
    assert again.counts == made.counts
    assert before == {path: path.stat().st_mtime_ns for path in other.rglob("*.tar")}


def test_a_function_by_value_in_processes(shards, tmp_path):
    """A lambda travels; what it prints does not disturb the results."""
    factor = 4
    report = wds.map_shards(
        lambda sample: print("noise") or {"txt": str(int(sample["txt"]) * factor)},
        shards,
        f"{tmp_path}/{{stem}}-x.tar",
        engine="processes",
        jobs=2,
    )
    assert len(report.done) == 6
    assert [fields["txt"] for _, fields in list_samples(tmp_path)] == [b"%d" % (4 * number) for number in range(55)]


def test_a_stream_function(shards, tmp_path):
    """A function of an iterator sees the samples of one output, across its inputs."""
    wds.map_shards(mapped.pair_up, shards, f"{tmp_path}/out/%d.tar", output_shards=2)
    found = list_samples(tmp_path / "out")
    assert [fields["b.txt"] for _, fields in found[:14]] == [b"%d" % number for number in range(1, 27, 2)] + [b"none"]
    assert len(found) == 28
    with pytest.raises(UsageError, match="an iterator belongs to no sample"):
        wds.map_shards(mapped.pair_up, shards, f"{tmp_path}/out/", on_sample_error="skip")


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_class_is_set_up_once_a_process(shards, tmp_path, engine):
    """A class is made with the parameters, set up before its first sample, and torn down at the end."""
    notes = tmp_path / "notes"
    notes.mkdir()
    params: Any = {"factor": 6, "folder": str(notes)}
    wds.map_shards(mapped.Scaler, shards, f"{tmp_path}/out/", engine=engine, jobs=2, params=params)
    assert [fields["txt"] for _, fields in list_samples(tmp_path / "out")] == [b"%d" % (6 * n) for n in range(55)]
    words = [path.name.split("-")[:2] for path in notes.iterdir()]
    setups, ends = ([pid for word, pid in words if word == kind] for kind in ("setup", "teardown"))
    assert sorted(setups) == sorted(ends) == sorted(set(setups))
    assert len(setups) == 1 if engine == "serial" else 1 <= len(setups) <= 2


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_the_seeds_example(tmp_path, engine):
    """``augment_wds`` of the seed, shard by shard: equal on both engines, and images as it makes them."""
    pytest.importorskip("PIL")
    rng = np.random.default_rng(0)
    names = []
    for shard in range(3):
        names.append(str(tmp_path / f"openimages-{shard:06d}.tar"))
        with wds.TarWriter(names[-1]) as writer:
            for number in range(4):
                image = rng.integers(0, 200, (8, 9, 3), dtype=np.uint8)
                writer.write({"__key__": f"{shard}{number}", "png": image, "json": {"class": number}})
    outputs = [name.replace("openimages", "augmented") for name in names]
    wds.map_shards(mapped.augment_wds, names, outputs, engine=engine, jobs=2, params={"maxcount": 3})
    found = list(wds.WebDataset(outputs, shardshuffle=False).decode("rgb8").to_tuple("__key__", "png", "cls"))
    assert [(key, label) for key, _, label in found] == [(f"{s}{n}", n) for s in range(3) for n in range(3)]
    assert all(image.min() == 0 and image.max() == 255 for _, image, _ in found)


def test_what_is_made_again_and_what_is_not(tmp_path):
    """Another input of the same size is; a touched, copied or moved one is not, and is looked at once only."""
    source = tmp_path / "in"
    make_shards(source, [4, 4])
    job = lambda: wds.map_shards(mapped.vary, f"{source}/*.tar", f"{tmp_path}/out/")  # noqa: E731
    assert len(job().done) == 2
    os.utime(source / "000.tar", ns=(1, 10**18))
    assert len(job().skipped) == 2
    receipt = json.loads((tmp_path / "out/000.tar.receipt.json").read_text())
    assert receipt["seen"][0]["mtime_ns"] == 10**18
    content = (source / "001.tar").read_bytes()
    (source / "001.tar").write_bytes(content.replace(b"55555", b"66666"))
    assert (source / "001.tar").stat().st_size == len(content)
    again = job()
    assert (len(again.skipped), again.reasons) == (1, {"input": 1})
    shutil.move(source, tmp_path / "moved")
    source = tmp_path / "moved"
    assert len(job().skipped) == 2


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({"params": {"mark": "a"}}, {"params": {"mark": "b"}}, "params"),
        ({"params": {"mark": "a"}}, {"params": {"mark": "a"}, "version": "2"}, "function"),
        ({"params": {"mark": "a"}}, {"params": {"mark": "a"}, "on_sample_error": "skip"}, "options"),
    ],
)
def test_other_options_make_outputs_again(shards, tmp_path, first, second, reason):
    """A parameter, a declared version and a policy are part of what an output is; max_errors and the engine are not."""
    job = lambda **options: wds.map_shards(mapped.tag, shards, f"{tmp_path}/out/", **options)  # noqa: E731
    job(**first)
    assert job(**second).reasons == {reason: 6}
    assert len(job(**second, max_errors=3, engine="processes", jobs=1).skipped) == 6


def test_a_changed_global_makes_outputs_again(shards, tmp_path, monkeypatch):
    """A constant that the function names, in its module, counts."""
    job = lambda: wds.map_shards(mapped.vary, shards, f"{tmp_path}/out/")  # noqa: E731
    job()
    monkeypatch.setattr(mapped, "FACTOR", 9)
    assert job().reasons == {"function": 6}
    assert len(job().skipped) == 6


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_an_error_of_a_sample_fails_its_output_alone(shards, tmp_path, engine):
    """``raise``: the other outputs are done; the error names the sample; the next run makes the failed ones only."""
    with pytest.raises(JobFailed, match="a sample of three") as failed:
        wds.map_shards(mapped.fail_some, shards, f"{tmp_path}/out/", engine=engine, jobs=2)
    report = failed.value.report
    assert [Path(report.outputs[each.number]).name for each in report.failed] == [
        "000.tar",
        "002.tar",
        "004.tar",
        "005.tar",
    ]
    assert report.failed[0].key == "00003"
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == ["001.tar", "003.tar"]
    assert not list((tmp_path / "out").glob(".*"))
    again = wds.map_shards(mapped.fail_some, shards, f"{tmp_path}/out/", check=False)
    assert (len(again.skipped), len(again.failed)) == (2, 4)


def test_the_quarantine_holds_the_samples_that_failed(shards, tmp_path):
    """One line and the files as they stood, in order; when nothing fails any more, the quarantine is gone."""
    report = wds.map_shards(mapped.fail_some, shards, f"{tmp_path}/out/", on_sample_error="quarantine")
    folder = Path(report.manifest) / "quarantine"
    lines = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [(line["key"], line["type"], line["message"]) for line in lines] == [
        (f"{number:05d}", "ValueError", "a sample of three") for number in (3, 13, 23, 33, 43, 53)
    ]
    kept = [str(path) for path in sorted(folder.glob("*.quarantined"))]
    assert [sample["txt"] for sample in wds.WebDataset(kept, shardshuffle=False)] == [
        b"%d" % n for n in range(3, 60, 10)
    ]
    skipped = wds.map_shards(mapped.fail_some, shards, f"{tmp_path}/skip/", on_sample_error="skip")
    assert skipped.counts == report.counts
    assert not list((tmp_path / "skip").rglob("*.jsonl"))


@pytest.mark.parametrize(("most", "fails"), [(0, 4), (1, 1), (3, 0), (0.05, 4), (0.2, 0)])
def test_too_many_errors_fail_an_output(shards, tmp_path, most, fails):
    """A count or a share of failed samples; a stricter rule later finds outputs that were done."""
    job = lambda most: wds.map_shards(  # noqa: E731
        mapped.fail_some, shards, f"{tmp_path}/out/", on_sample_error="skip", max_errors=most, check=False
    )
    assert len(job(most).failed) == fails
    assert len(job(None).failed) == 0
    assert len(job(most).failed) == fails


def test_a_sample_that_crashes_its_process(shards, tmp_path):
    """Quarantined after two deaths, beside the other errors; with ``raise`` the output fails and names it."""
    rules: Any = {"engine": "processes", "jobs": 2}
    report = wds.map_shards(mapped.crash_at_13, shards, f"{tmp_path}/out/", on_sample_error="quarantine", **rules)
    folder = Path(report.manifest) / "quarantine"
    lines = [json.loads(line) for line in (folder / "000002.jsonl").read_text().splitlines()]
    assert [(line["key"], line["type"]) for line in lines] == [("00013", "WorkerDied")]
    assert not list((Path(report.manifest) / "deaths").iterdir())
    with pytest.raises(JobFailed, match="killed the process") as failed:
        wds.map_shards(mapped.crash_at_13, [shards[2]], f"{tmp_path}/raise/", **rules)
    assert failed.value.key == "00013"


def test_a_function_that_ends_its_process(shards, tmp_path):
    """``os._exit`` is found out after two deaths, ``sys.exit`` at once; what looks like Ctrl-C fails the output."""
    rules: Any = {"engine": "processes", "jobs": 1}
    report = wds.map_shards(mapped.leave_at_13, [shards[2]], f"{tmp_path}/", on_sample_error="quarantine", **rules)
    lines = (Path(report.manifest) / "quarantine/000000.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["WorkerDied", "SystemExit"]
    assert report.done[0].attempt == 3
    with pytest.raises(JobFailed, match="KeyboardInterrupt") as failed:
        wds.map_shards(mapped.interrupt, [shards[2]], f"{tmp_path}/", **rules)
    assert failed.value.report.failed[0].attempt == 1


def test_two_results_of_one_key_are_an_error_of_the_sample(shards, tmp_path):
    """An output never holds two samples of one key, next to each other or not."""
    report = wds.map_shards(
        lambda sample: {"__key__": f"{int(sample['txt']) % 3}", "txt": sample["txt"]},
        shards[2:3],
        f"{tmp_path}/out/",
        on_sample_error="quarantine",
    )
    assert report.counts["errors"] == 9
    assert [key for key, _ in list_samples(tmp_path / "out")] == ["1", "2", "0"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "told"),
    [
        ("000.tar", "../in/{name}", {}, "replace an input"),
        ("00{0,2}.tar", "x.tar", {}, "1 names for 2 outputs"),
        ("00{0,0}.tar", "out/", {}, "named twice"),
        ("000.tar", "out/{name}", {"output_shards": 2}, "no {name}"),
        ("000.tar", "out/", {"params": {"api_token": "x"}}, "like a secret"),
        ("000.tar", "out/", {"params": {"x": object()}}, "no plain value"),
        ("000.tar", "out/", {"on_sample_error": "ignore"}, "is none of"),
        ("000.tar", "out/", {"task": (3, 3)}, "makes no sense"),
        ("000.tar", "out/", {"output_shards": 0}, "at least one"),
        ("000.tar", "out/", {"max_errors": 1.5}, "neither a count"),
        ("000.tar", "out/", {"engine": "spark"}, "is none of 'serial'"),
        ("00{0,2}.tar", "pipe:cat {name}", {}, "looked at again"),
    ],
)
def test_calls_that_make_no_sense(shards, tmp_path, monkeypatch, inputs, outputs, options, told):
    """Each is refused before anything is written."""
    monkeypatch.chdir(tmp_path / "in")
    with pytest.raises(UsageError, match=told):
        wds.map_shards(mapped.keep, inputs, outputs, **options)
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_inputs_that_are_not_there(tmp_path):
    """No inputs, and an input that is missing, are errors at once."""
    with pytest.raises(NoShards):
        wds.map_shards(mapped.keep, [], f"{tmp_path}/out/")
    with pytest.raises(NotFound, match=r"gone\.tar"):
        wds.map_shards(mapped.keep, [f"{tmp_path}/gone.tar"], f"{tmp_path}/out/")


def test_inputs_without_identity_are_mapped_each_time(shards, tmp_path):
    """A command does not say whether its output changed: it runs each time, unless its name is trusted."""
    url = f"pipe:cat {shards[0]}"
    job = lambda **options: wds.map_shards(mapped.keep, [url], [f"{tmp_path}/out.tar"], **options)  # noqa: E731
    assert len(job().done) == 1
    assert job().reasons == {"input": 1}
    assert len(job(trust="name").skipped) == 1


def test_a_job_survives_json_and_pickle(shards, tmp_path):
    """What is sent to a task is equal to the job; a task needs its own inputs only."""
    import pickle

    job = mapping.plan_job(mapped.keep, shards, f"{tmp_path}/out/%d.tar", output_shards=3)
    assert ShardJob.from_json(json.loads(json.dumps(job.to_json()))) == job
    assert pickle.loads(pickle.dumps(job)) == job
    small = job.only(0)
    assert (list(small.outputs), list(small.inputs)) == ([0], [0, 2])
    by_value = mapping.plan_job(lambda sample: sample, shards, f"{tmp_path}/out/")
    assert by_value.callable is not None
    assert callable(pickle.loads(pickle.dumps(by_value)).callable)


def test_records_hold_no_secrets(shards, tmp_path):
    """A signature in an input's url is neither in the receipt nor in the manifest, nor in what is told of a failure."""
    url = f"pipe:cat {shards[0]} # --token abcdef-secret"
    report = wds.map_shards(mapped.fail_some, [url], [f"{tmp_path}/out.tar"], on_sample_error="quarantine")
    wds.map_shards(mapped.fail_some, [url], [f"{tmp_path}/out.tar"], check=False)
    records = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl")]
    assert {path.name for path in records} >= {"out.tar.receipt.json", "job.json", "report.json", "000000.jsonl"}
    assert report.done
    assert not [path for path in records if b"abcdef-secret" in path.read_bytes()]


def test_outputs_in_memory_and_compressed(shards):
    """Another scheme on both sides; compression by the names of the outputs."""
    for name in shards:
        with wds.gopen(f"memory://jobs/in/{Path(name).name}", "wb") as stream:
            stream.write(Path(name).read_bytes())
    inputs = [f"memory://jobs/in/{Path(name).name}" for name in shards]
    job = lambda: wds.map_shards(mapped.keep, inputs, "memory://jobs/out/{stem}.tar.gz")  # noqa: E731
    report = job()
    found = list(wds.WebDataset(list(report.outputs.values()), shardshuffle=False))
    assert [sample["__key__"] for sample in found] == [f"{number:05d}" for number in range(55)]
    assert len(job().skipped) == 6
    with wds.gopen(inputs[0], "wb") as stream:
        stream.write(Path(shards[2]).read_bytes())
    assert job().reasons == {"input": 1}


def test_an_engine_that_loses_results_is_told_of(shards, tmp_path):
    """No result is a failure, and so is an output that disappears before the end."""

    class Careless(SerialEngine):
        name = "careless"

        def run(self, job, numbers, retries):
            for result in super().run(job, numbers, retries):
                if result.number == 2:
                    os.unlink(job.outputs[2].url)
                if result.number != 4:
                    yield result

    report = wds.map_shards(mapped.keep, shards, f"{tmp_path}/out/", engine=Careless(), check=False)
    assert {each.number: each.reason.split(":")[1].strip()[:30] for each in report.failed} == {
        2: "the output was made, and is no",
        4: "the engine gave no result",
    }


def test_a_receipt_of_another_run_for_what_this_run_stored(shards, monkeypatch):
    """Two runs that write one name of a store: the receipt that the earlier one leaves for the later one's object goes.

    Otherwise the earlier run, made again, would take the other's samples for its own.
    """
    run = (
        lambda mark, **given: wds.map_shards(  # noqa: E731
            mapped.tag, shards[:1], "memory://two-runs/{stem}.tar", params={"mark": mark}, **given
        )
    )
    first = run("a")
    (url,) = first.outputs.values()
    receipt = receipts.read_receipt(url)
    check = shard_tasks._OutputTask._check_inputs

    def describe_for_the_first(task):
        """Describe the object of the later run as the earlier one does that stored its own just before."""
        check(task)
        stored = identify_object(url).to_json()
        receipts.write_receipt(url, {**receipt, "output": {**receipt["output"], **stored}})

    with monkeypatch.context() as patch:
        patch.setattr(shard_tasks._OutputTask, "_check_inputs", describe_for_the_first)
        with pytest.raises(JobFailed, match="two tasks made different outputs"):
            run("b")
    again = run("a")
    assert not again.skipped
    assert {sample["tag"] for sample in wds.WebDataset(url, shardshuffle=False)} == {b"a"}
