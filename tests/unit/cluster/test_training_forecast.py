"""Forecasts of training jobs: shares as the splitters make them, limits by arithmetic, rates of real datasets."""

import json
import math
import random
import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.cluster import training_rates
from webdataset.cluster.reader_shares import ShardTable, find_job_settings, read_shard_table, share_shards
from webdataset.cluster.request_bursts import simulate_burst
from webdataset.cluster.training_forecast import describe_forecast, forecast_training
from webdataset.cluster.training_job import TrainingJob, list_settings
from webdataset.cluster.training_rates import TrainingRates, measure_rates
from webdataset.core.errors import NoSamples, UsageError
from webdataset.loading.read_plan import plan_reading

RATES = TrainingRates(
    cores=4,
    samples_per_shard=100,
    sample_bytes=1000,
    decoded_bytes=5000,
    cpu_seconds_per_sample=0.001,
    cpu_seconds_per_shard=0.01,
    cpu_seconds_per_byte=1e-9,
    batch_cpu_seconds=0.0032,
    main_cpu_seconds_per_sample=0.0001,
    main_cpu_seconds_per_batch=0.0016,
    start_seconds=0.5,
    start_cpu_seconds=0.25,
    first_byte_seconds=0.05,
    connection_bytes_per_second=1e6,
    state_bytes_per_stream=700,
    state_bytes_per_buffered_sample=3,
    resume_seconds_per_stream=0.01,
    resume_seconds_per_buffered_sample=0.001,
)
TABLE = ShardTable.uniform(800, 100, 1000.0)


@pytest.mark.parametrize("seed", range(60))
def test_shares_are_those_of_the_splitters(seed):
    """Samples and shards of each process, against a plan that runs the splitters themselves."""
    rng = random.Random(seed)
    ranks, workers = rng.randint(1, 5), rng.randint(0, 4)
    urls = [f"s-{number:03d}.tar" for number in range(rng.randint(1, 40))]
    counts = {url: rng.randint(0, 30) for url in urls}
    kind = ("shards", "samples", "elastic")[seed % 3]
    how = {"shardshuffle": False, "nodesplitter": wds.split_by_node, "empty_check": False}
    if kind == "samples":
        how |= {"nodesplitter": wds.split_by_sample, "workersplitter": None}
    dataset = wds.WebDataset(urls, **({"shardshuffle": False} if kind == "elastic" else how))
    streams = ranks + rng.randint(0, 30) if kind == "elastic" else 0
    source = dataset.elastic(streams) if streams else dataset
    plan = plan_reading(source, ranks=ranks, workers=workers, counts=counts)
    sizes = np.array([100 * counts[url] + 1 for url in urls])
    table = ShardTable(np.array([counts[url] for url in urls]), sizes)
    job = TrainingJob(ranks=ranks, workers=workers, streams=streams, by_sample=kind == "samples")
    shares = share_shards(table, job)
    bytes_of = dict(zip(urls, sizes.tolist(), strict=True))
    assert shares.samples.tolist() == [worker.samples for worker in plan.workers]
    assert shares.shards.tolist() == [len(worker.shards) for worker in plan.workers]
    assert shares.size_bytes.tolist() == [
        sum(bytes_of[shard.url] for shard in worker.shards) for worker in plan.workers
    ]


LIMITS: dict[str, tuple[dict[str, Any], float]] = {
    # two ranks on one host, four workers each; 800 shards of 100 samples of 1 kB are 8 for each 800 samples
    "processors": ({"cores": 1}, 1 / (0.001 + 0.01 / 100 + 0.0032 / 32 + 0.0001 + 0.0016 / 32)),
    "workers": ({"cores": 99, "workers": 1}, 2 / (0.001 + 0.01 / 100 + 0.0032 / 32)),
    "rank's thread": ({"cores": 99, "batch_size": 1, "workers": 60}, 2 / (0.0001 + 0.0016)),
    # so many shards under way at once: 50 ms and 100 ms of transfer for 100 samples
    "connections": ({"cores": 99, "workers": 1, "connections": 7}, 2 * 7 * 100 / 0.15),
    "network of a host": ({"cores": 99, "host_bytes_per_second": 1e6}, 1000.0),
    "bytes of the store": ({"cores": 99, "store_bytes_per_second": 5e5}, 500.0),
    "requests of a host": ({"cores": 99, "host_requests_per_second": 2.5}, 250.0),
    "requests of the store": ({"cores": 99, "requests_per_second": 1.5, "prefixes": 2}, 300.0),
    "trainer": ({"cores": 99, "samples_per_second": 60.0}, 120.0),
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_limits(name):
    """Each resource alone is the limit, at the speed that arithmetic says."""
    settings, expected = LIMITS[name]
    job = TrainingJob.from_settings({"ranks": 2, "ranks_per_host": 2, **settings})
    rates = RATES
    if name == "connections":
        rates = replace(RATES, cpu_seconds_per_sample=1e-6, cpu_seconds_per_shard=0.0, batch_cpu_seconds=0.0)
        rates = replace(rates, main_cpu_seconds_per_sample=0.0, main_cpu_seconds_per_batch=0.0)
    found = forecast_training(TABLE, job, rates)
    assert (found.bottleneck, found.samples_per_second) == (name, pytest.approx(expected))
    assert found.samples_per_second == min(found.allowed.values())
    assert found.bytes_per_second == pytest.approx(expected * 1000)
    assert found.requests_per_second == pytest.approx(expected / 100)
    assert found.epoch_seconds == pytest.approx(80_000 / expected)
    assert (name == "trainer") == (not any("limit" in text for text in found.advice))
    if name == "trainer":
        assert found.trainer_waits == 0


def test_processors_are_busy_for_a_share_of_their_time():
    """Where processes wait for each other, disks or other programs, processors and workers allow as much less."""
    job = TrainingJob(ranks=2, ranks_per_host=2, workers=1)
    whole, shared = (
        forecast_training(TABLE, job, rates) for rates in (RATES, replace(RATES, worker_busy=0.8, processors_busy=0.5))
    )
    ratios = {name: shared.allowed[name] / speed for name, speed in whole.allowed.items()}
    assert ratios == pytest.approx({"processors": 0.5, "workers": 0.8, "rank's thread": 1.0, "connections": 1.0})
    inline = forecast_training(TABLE, replace(job, workers=0), replace(RATES, worker_busy=0.8))
    assert inline.allowed["rank's thread"] == pytest.approx(0.8 * 2 / (0.001 + 0.01 / 100 + 1e-4 + 0.0001 + 0.00005))


def test_a_worker_that_waits_is_not_taken_for_a_busy_one(tmp_path):
    """Waiting that costs no processor time (a disk, say) is in the forecast: it is in the speed that was measured."""
    urls = make_shards(tmp_path, [20, 20, 20])

    def wait(sample):
        time.sleep(0.02)
        return sample

    found = measure_rates(wds.WebDataset(urls, shardshuffle=False).map(wait), batch_size=2, seconds=1.0, rounds=1)
    assert 0 < found.worker_busy < 0.5
    assert 0 < found.processors_busy < 0.5
    job = TrainingJob(ranks=1, ranks_per_host=1, workers=1, batch_size=4)
    # fifty samples a second are the most that a worker gives
    assert forecast_training(ShardTable.uniform(3, 20, 1000.0), job, found).samples_per_second < 100


def test_memory_states_start_and_failures():
    """What arithmetic says of 4 ranks on 2 hosts with 64 streams."""
    job = TrainingJob(
        ranks=4, ranks_per_host=2, workers=2, streams=64, shuffle=6400, shuffle_initial=640,
        hours_between_failures=12.0, checkpoint_minutes=20.0, checkpoint_seconds=60.0, cores=2, batch_size=10,
    )  # fmt: skip
    found = forecast_training(TABLE, job, RATES)
    # 8 streams of 100 samples and 8 shards ahead in each of 4 processes; 4 batches of each of 2 ranks
    assert found.memory_bytes == 4 * (8 * 100 * 1000 + 8 * 100_000) + 2 * 4 * 10 * 5000
    assert found.state_bytes == 64 * (700 + 100 * 3)
    # 4 processes on 2 processors; the first byte; 8 streams of 10 samples and half a batch, by one connection
    expected = {"processes": 0.5, "list of shards": 0.0, "first bytes": 0.05, "first batch": 85 * 2 * 0.001}
    assert found.start_steps == pytest.approx(expected)
    restore = (8 * 0.01 + 800 * 0.001) * 2
    assert found.resume_seconds == pytest.approx(0.5 + 0.05 + 10 * 2 * 0.001 + restore)
    assert found.failures_per_day == 4
    lost = 4 / 86400 * (600 + found.resume_seconds)
    assert found.goodput == pytest.approx(20 / 21 * (1 - lost))
    assert any("27 minutes" in text for text in found.advice)
    rows = dict(describe_forecast(found, job))
    assert "4 ranks on 2 hosts, 8 processes" in rows["job"]
    assert set(rows) == {"job", "speed", "reads", "epoch", "memory", "state", "start", "resume", "failures"}


def test_slow_first_bytes_and_lists():
    """Of many processes the slowest first byte counts; pages of a list follow each other, and hosts share a limit."""
    rates = replace(RATES, first_byte_spread=0.5)
    one, many = (
        forecast_training(TABLE, TrainingJob(ranks=ranks, workers=1, cores=64), rates).start_steps["first bytes"]
        for ranks in (1, 1000)
    )
    assert one == pytest.approx(0.05)
    assert many == pytest.approx(0.05 * math.exp(0.5 * 3.0905), rel=1e-3)
    table = ShardTable.uniform(5500, 10, 1000.0)
    alone = forecast_training(table, TrainingJob(listed=True), RATES).start_steps["list of shards"]
    assert alone == pytest.approx(6 * 0.05)
    job = TrainingJob(ranks=800, listed=True, requests_per_second=100.0)
    found = forecast_training(table, job, RATES)
    assert found.start_steps["list of shards"] == pytest.approx(100 * 6 / 100)
    assert found.start_refused > 0


def test_advice():
    """What is uneven, shared, or leaves too little to shuffle is said."""
    job = TrainingJob(ranks=8, workers=4, streams=36, shuffle=100, requests_per_second=0.2, samples_per_second=1.0)
    texts = "\n".join(forecast_training(ShardTable.uniform(50, 10, 100.0), job, RATES).advice)
    for part in (
        "1.39 shards for each stream",
        "44% more bytes",
        "leaves 3 samples",
        "36 streams are no multiple of 32",
    ):
        assert part in texts, texts
    assert "spread the shards over" in texts
    with pytest.raises(UsageError, match="no samples"):
        forecast_training(ShardTable.uniform(3, 0, 1.0), TrainingJob(), RATES)


def test_a_start_of_all_hosts_at_once():
    """Refused hosts recover slowly; with the store's limit shared out between hosts the start takes what it must."""
    job = TrainingJob(
        ranks=10_000,
        ranks_per_host=8,
        workers=8,
        streams=80_000,
        requests_per_second=5500.0,
        cores=96,
        samples_per_second=4,
    )
    table = ShardTable.uniform(100_000, 100, 1000.0)
    ideal = 1250 * 64 * 3 / 5500
    freely = forecast_training(table, job, RATES)
    assert freely.start_steps["first bytes"] > 3 * ideal
    assert freely.start_refused > 0
    [advice] = [text for text in freely.advice if "WDS_REQUESTS_PER_SECOND=4.4" in text]
    assert "it comes after 4" in advice
    bounded = forecast_training(table, replace(job, host_requests_per_second=4.4), RATES)
    assert bounded.start_steps["first bytes"] < 1.05 * ideal + 1
    assert bounded.start_refused == 0
    assert not any("WDS_REQUESTS_PER_SECOND" in text for text in bounded.advice)


def test_ten_thousand_ranks():
    """80 000 processes over 100 000 shards: the planned shares, and a burst of 240 000 requests."""
    limits = {"samples_per_second": 400.0, "requests_per_second": 5500.0, "prefixes": 5, "cores": 96}
    job = TrainingJob.from_settings({"ranks": 10_000, "workers": 8, "streams": 80_000, **limits})
    found = forecast_training(ShardTable.uniform(100_000, 1000, 100_000.0), job, RATES)
    assert found.epoch_bytes == 160_000 * 100_000_000
    # 4 000 000 samples a second in shards of 1 000, of which the last 20 000 are read by four streams each
    assert found.allowed["trainer"] == 4e6
    assert found.allowed["requests of the store"] == pytest.approx(27_500 / 1.6 * 1000 / 6, rel=0.01)


@pytest.mark.parametrize("stage", [wds.batched(4), wds.bucket("cls", batch_size=4)])
def test_batches_are_not_measured_as_samples(stage):
    """The loader that is measured makes them; batches of the dataset would count as samples."""
    with pytest.raises(
        UsageError, match=r"the dataset makes batches itself: give it without batched\(\) or bucket\(\)"
    ):
        measure_rates(wds.WebDataset("a-{0..3}.tar", shardshuffle=False).compose(stage))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 3}, "no setting 'rank'"),
        ({"ranks": 0}, "at least 1"),
        ({"ranks": 2.5}, "of type int"),
        ({"ranks": True}, "of type int"),
        ({"listed": 1}, "of type bool"),
        ({"checkpoint_minutes": float("nan")}, "at least 0"),
        ({"samples_per_second": "x"}, "of type float"),
        ({"ranks": 8, "streams": 7}, "7 streams for 8 ranks"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    """A wrong setting is refused by its name."""
    with pytest.raises(UsageError, match=message):
        TrainingJob.from_settings(settings)


def test_settings_are_described():
    """Each setting has a text and a default of its kind."""
    for setting in list_settings():
        assert setting.text.endswith(".")
        assert setting.optional == (setting.default is None)
        assert setting.default is None or isinstance(setting.default, setting.kind)
    assert TrainingJob.from_settings({"samples_per_second": None, "hours_between_failures": 3}).hosts == 1


def test_rates_are_kept(tmp_path):
    """What is saved is loaded; anything else is refused by name."""
    path = tmp_path / "rates.json"
    for rates in (RATES, replace(RATES, connection_bytes_per_second=None)):
        rates.save(str(path))
        assert TrainingRates.load(str(path)) == rates
    record = RATES.to_json()
    for change, message in (
        ({"version": 2}, "version 1"),
        ({"cores": -1}, "cores=-1"),
        ({"worker_busy": 0}, "worker_busy=0"),
        ({"processors_busy": 1.5}, "processors_busy=1.5"),
        ({"cores": None}, "cores=None"),
        ({"cores": "4"}, "cores='4'"),
        ({"cpu_seconds_per_byte": float("nan")}, "cpu_seconds_per_byte=nan"),
        ({"colour": 1}, "colour=1"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainingRates.from_json({**record, **change})
    with pytest.raises(UsageError, match="not complete"):
        TrainingRates.from_json({"version": 1})
    path.write_text("{")
    with pytest.raises(UsageError, match="no JSON"):
        TrainingRates.load(str(path))
    path.write_text("[]")
    with pytest.raises(UsageError, match="version 1"):
        TrainingRates.load(str(path))


# more requests of a host take seconds each, and only repeat what these do
@settings(max_examples=30)
@given(
    hosts=st.integers(1, 80),
    requests=st.integers(1, 20),
    limit=st.floats(0.5, 5000),
    lanes=st.one_of(st.none(), st.integers(1, 20)),
    bound=st.one_of(st.none(), st.floats(1, 1000)),
)
def test_bursts(hosts, requests, limit, lanes, bound):
    """Every request is answered or given up; the store answers no more than it can; refusals cost time, not order."""
    found = simulate_burst(hosts, requests, limit, lanes=lanes, bound=bound)
    chosen = min(hosts, 64)
    scale = hosts / chosen
    answered = found.sent - found.refused
    assert answered + found.failed == pytest.approx(hosts * requests, abs=2)
    assert answered <= (limit * (found.seconds + 1) + scale) * 1.001 + 2
    if hosts * requests <= limit:
        assert (found.refused, found.failed) == (0, 0)
        if bound is None:
            assert found.seconds == 0


def make_shards(folder, counts, payload=1000):
    """Write shards; return their paths."""
    paths = []
    for number, count in enumerate(counts):
        paths.append(str(folder / f"s-{number}.tar"))
        with wds.TarWriter(paths[-1]) as sink:
            for index in range(count):
                sink.write({"__key__": f"{number}-{index:03d}", "bin": bytes(payload), "cls": index})
    return paths


def test_rates_of_local_shards(tmp_path):
    """Sizes and numbers are exact; costs are those of this machine, none negative; no connection is measured."""
    urls = make_shards(tmp_path, [30, 30, 30])
    dataset = wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("bin", "cls")
    steps = []
    found = measure_rates(dataset, batch_size=8, seconds=0.1, rounds=1, advance=steps.append)
    assert steps == ["bytes", "samples", "dataset and loader", "states"]
    assert found.samples_per_shard == 30
    # members of 512 + 1024 and 512 + 512 bytes, and the end mark
    assert found.sample_bytes == pytest.approx(77824 / 30)
    assert found.decoded_bytes == 1008
    assert (found.first_byte_seconds, found.connection_bytes_per_second) == (0, None)
    costs = {name: value for name, value in asdict(found).items() if value is not None}
    assert min(costs.values()) >= 0
    for name in ("cpu_seconds_per_sample", "start_seconds", "state_bytes_per_stream", "resume_seconds_per_stream"):
        assert costs[name] > 0
    table = read_shard_table(dataset, found, {urls[0]: 12, urls[1]: 13})
    assert table.samples.tolist() == [12, 13, 30]
    assert table.size_bytes.tolist() == [77824] * 3
    pretended = read_shard_table(dataset, found, pretend=7)
    assert (pretended.samples.tolist(), pretended.size_bytes.tolist()) == ([30] * 7, [77824] * 7)
    forecast = forecast_training(table, TrainingJob(ranks=1, workers=1), found)
    assert json.loads(json.dumps(forecast.to_json())) == forecast.to_json()


@pytest.mark.parametrize(
    ("stages", "samples_per_row"),
    [
        ([wds.shuffle(50)], 1),
        ([wds.select(lambda sample: sample["cls"] % 3 == 0)], 3),
        (
            [
                wds.shuffle(20),
                wds.map(lambda sample: {**sample, "ids": [1] * 10}),
                wds.pack(40, tokens="ids", window=30),
            ],
            4,
        ),
        ([wds.map(lambda sample: {**sample, "ids": [1] * 10}), wds.pack(40, tokens="ids")], 4),
        ([wds.map(lambda sample: [sample] * 5), wds.unlisted()], 1 / 5),
    ],
)
@pytest.mark.parametrize("rows", [20, 10**9])
def test_rows_of_several_samples(stages, samples_per_row, rows, tmp_path, monkeypatch):
    """How many samples make a row is counted, over the whole dataset and over its beginning alike."""
    monkeypatch.setattr(training_rates, "_FEWEST_ROWS", rows)
    dataset = wds.WebDataset(make_shards(tmp_path, [120, 120]), shardshuffle=False).decode().compose(*stages)
    measurement = training_rates._Measurement(dataset, 8, 0.0, 1, lambda _: None)
    assert measurement._count_samples_per_row() == pytest.approx(samples_per_row, rel=0.1 if rows == 20 else 1e-9)


def test_a_packed_dataset(tmp_path):
    """Costs are of samples of the shards, and the forecast tells both speeds."""
    urls = make_shards(tmp_path, [60, 60])
    dataset = wds.WebDataset(urls, shardshuffle=False).decode().map(lambda sample: {**sample, "ids": [1] * 10})
    plain, packed = (
        measure_rates(each, batch_size=4, seconds=0.1, rounds=1)
        for each in (dataset.to_tuple("ids"), dataset.pack(40, tokens="ids"))
    )
    assert plain.samples_per_row == 1
    assert packed.samples_per_row == pytest.approx(4, rel=0.05)
    assert packed.samples_per_shard == plain.samples_per_shard == 60


def test_rows_count_for_batches_and_trainers():
    """Four samples in a row: a batch of 8 rows has the costs of one of 32 samples, a trainer takes rows."""
    job = TrainingJob(ranks=4, workers=4, batch_size=32, cores=64)
    rows = replace(job, batch_size=8)
    packed = replace(RATES, samples_per_row=4.0)
    whole, found = forecast_training(TABLE, job, RATES), forecast_training(TABLE, rows, packed)
    assert found.samples_per_second == pytest.approx(whole.samples_per_second)
    assert found.rows_per_second == pytest.approx(whole.samples_per_second / 4)
    assert whole.rows_per_second == whole.samples_per_second
    assert found.epoch_seconds == pytest.approx(whole.epoch_seconds)
    assert found.start_seconds == pytest.approx(whole.start_seconds)
    limited = forecast_training(TABLE, replace(rows, samples_per_second=10.0), packed)
    assert (limited.bottleneck, limited.rows_per_second) == ("trainer", 40.0)
    assert limited.trainer_waits == 0
    told = dict(describe_forecast(limited, rows))["speed"]
    assert told.startswith("160 samples/s in 40 rows/s; limit: trainer")
    assert "rows" not in dict(describe_forecast(whole, job))["speed"]


def test_rates_of_a_store(tmp_path):
    """First bytes and the speed of a connection are those of the line."""
    [path] = make_shards(tmp_path, [40], payload=20_000)
    with open(path, "rb") as file, PacedServer({"/s.tar": file.read()}, bytes_per_second=4e6) as server:
        dataset = wds.WebDataset([f"{server.root}/s.tar"] * 2, shardshuffle=False)
        found = measure_rates(dataset, batch_size=8, seconds=0.1, rounds=1)
    assert 0 < found.first_byte_seconds < 5
    assert 0 < found.connection_bytes_per_second < 8e6
    assert found.samples_per_shard == 40


def test_what_cannot_be_measured(tmp_path):
    """Batches, mixes and empty shards are refused by what is wrong with them."""
    urls = make_shards(tmp_path, [3])
    with pytest.raises(UsageError, match="batched"):
        measure_rates(wds.WebDataset(urls).batched(2))
    with pytest.raises(UsageError, match="reads shards"):
        measure_rates(wds.DataPipeline(lambda: iter([1])))
    with pytest.raises(NoSamples):
        measure_rates(wds.WebDataset(make_shards(tmp_path, [0])), seconds=0.05, rounds=1)


def test_settings_of_a_dataset():
    """Streams, shuffle buffers and a loader's settings are those of the dataset."""
    dataset = wds.WebDataset(["a.tar"], shardshuffle=False).shuffle(640, initial=64)
    assert find_job_settings(dataset) == {"shuffle": 640, "shuffle_initial": 64}
    loader = wds.Loader(dataset.elastic(12), 16, workers=3)
    expected = {"shuffle": 640, "shuffle_initial": 64, "streams": 12, "workers": 3, "batch_size": 16}
    assert find_job_settings(loader) == expected
