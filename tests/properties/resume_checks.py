"""Whether a pipeline that is stopped and resumed gives what one gives that was never stopped.

The run that was never stopped is the oracle: position to item. Every other run is walked along it, item by item: runs
under other topologies, runs of which states are taken often or seldom, runs resumed behind a cut, those resumed again,
and once more. The first item that is another ends the case.
"""

import json
import random
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from resume_pipelines import Case
from resume_stages import shown

import webdataset as wds
from webdataset.core.distributed import WorkerContext
from webdataset.flow.elastic_state import ReceivedState
from webdataset.flow.virtual_stream import END

ALONE = (1, 1)
WINDOW = 1500  # items that are compared behind the third resume, where they are not all
RANKS, WORKERS = (1, 2, 3, 4, 5, 8), (1, 1, 2, 3, 4)


class Differs(AssertionError):
    """A run does not give what the run gave that was never stopped."""


@dataclass
class Verdict:
    """What became of a case.

    Args:
        case: it.
        outcome: ``same``, ``refused`` (a typed error before anything was stopped), ``empty``, ``differs`` or
            ``broken``.
        why: of a refusal or failure.
        items: of the run that was never stopped.
        resumed: how many runs were resumed.
    """

    case: Case
    outcome: str = "same"
    why: str = ""
    items: int = 0
    resumed: int = 0
    trail: list[str] = field(default_factory=list)

    @property
    def failed(self):
        """Whether the case shows a defect."""
        return self.outcome in {"differs", "broken"}


def through_json(state, rng):
    """Return a state as it comes back from a file."""
    return json.loads(json.dumps(state, sort_keys=rng.random() < 0.3))


def by_turns(run):
    """Yield what a run gives to a loader, which asks for turns: positions and items.

    Args:
        run: an elastic run.
    """
    streams = run.streams
    for item, _ in run.turns(range(streams), -1):
        if item is not END:
            number = run._cursor().turn
            yield (run._cursor().streams[number].count - 1) * streams + number, item


class Job:
    """All workers of a job; a plain pipeline's is one worker whose positions are ordinals.

    Args:
        play: the oracle, and where the job notes what it does.
        topology: ranks and workers.
        state: where to go on.
        entry: how the state gets in: ``run``, ``load`` or ``begun``.
        epoch: that the dataset is set to before; None is the case's.
        turns: read as loaders do; None: perhaps.
    """

    def __init__(self, play, topology, state=None, entry="run", epoch=None, turns=None):  # noqa: PLR0917  one value each
        self.play = play
        case = play.case
        ranks, workers = topology
        self.given, self.as_given = state, json.dumps(state)
        self.turns = turns if turns is not None else case.streams is not None and play.rng.random() < 0.2
        if case.streams is None:
            made = case.make()
            self.runs = [made.start() if state is None else made.start(state)]
            self.pairs = [enumerate(self.runs[0], play.begun)]
            self.left = [sorted(play.left)]
            return
        self.runs, self.left, self.pairs, self.received = [], [], [], None
        continue_epochs = bool(play.rng.randrange(2)) if play.left else True
        for rank in range(ranks):
            for worker in range(workers):
                made, place = case.make(epoch), WorkerContext(rank, ranks, worker, workers)
                if state is not None and entry == "load" and topology == ALONE:
                    made.load_state_dict(state)
                    run = iter(made)
                elif state is not None and entry == "begun":
                    run = made.elastic_run(place, continue_epochs=continue_epochs)
                    list(islice(run, 3))
                    run.load_state_dict(state)
                else:
                    run = made.elastic_run(place, state, continue_epochs=continue_epochs)
                self.runs.append(run)
                self.pairs.append(by_turns(run) if self.turns else run.positions())
                own = {number for number in range(rank, case.streams, ranks)}
                own = {number for index, number in enumerate(sorted(own)) if index % workers == worker}
                self.left.append([position for position in play.left if position % case.streams in own])

        if play.rng.random() < 0.2:  # as a loader, whose workers run ahead
            self.received = [ReceivedState(run.header() if state is None else state) for run in self.runs]

    def state(self):
        """Return the state of the whole job."""
        rng = self.play.rng
        if self.play.case.streams is None:
            return through_json(self.runs[0].snapshot(), rng)
        if self.received is None:
            return through_json(wds.merge_states([run.state_dict() for run in self.runs]), rng)
        for run, received in zip(self.runs, self.received, strict=True):
            received.take(run.progress())
        return through_json(wds.merge_states([received.state_dict() for received in self.received]), rng)

    def close(self):
        """Close all runs."""
        for run in self.runs:
            run.close()
        if json.dumps(self.given) != self.as_given:
            raise Differs("a run changed the state that it was resumed from")


class Play:
    """One case being played.

    Args:
        case: the pipeline.
        cuts: how many places it is stopped at.
        chains: kinds of resumes: ``same`` topology, or ``other``.
    """

    def __init__(self, case, cuts=5, chains=("same", "other")):
        self.case = case
        self.cuts = cuts
        self.chains = chains
        self.rng = random.Random(f"plan {case.seed}")
        self.left, self.begun = [], 0
        self.resumed = 0
        self.trail = []

    # -- the oracle

    def oracle(self):
        """Run the pipeline without a stop; return position to item."""
        if self.case.streams is None:
            return dict(enumerate(map(shown, self.case.make().start())))
        ranks = self.case.ranks or 1
        runs = [self.case.make().elastic_run(WorkerContext(rank, ranks, 0, 1)) for rank in range(ranks)]
        return {position: shown(item) for run in runs for position, item in run.positions()}

    def check(self):
        """Play the case.

        Raises:
            Differs: a run gave something else than the oracle.
        """
        self.whole = self.oracle()
        self.positions = sorted(self.whole)
        if self.case.streams is None:
            self._same_untracked()
        if not self.whole:
            return
        home = self._topology() if self.case.ranks or self.rng.random() < 0.5 else ALONE
        for kind in self.chains:
            places = self._places()
            topology = home if kind == "same" else self._topology()
            self._chained(kind, topology, places)

    def _same_untracked(self):
        if "DataPipeline(wds.WebDataset" in self.case.code:
            return  # the inner one is not told the seed
        untracked = [shown(item) for item in self.case.make()]
        if untracked != list(self.whole.values()):
            raise Differs("a run that keeps no addresses gives another order than one that does")

    # -- where and how

    def _topology(self):
        streams = self.case.streams
        if streams is None:
            return ALONE
        ranks = [ranks for ranks in RANKS if (streams % ranks == 0 if self.case.even else ranks <= streams)]
        return self.case.ranks or self.rng.choice(ranks), self.rng.choice(WORKERS)

    def _places(self):
        """Return where to stop: numbers of items that the job has given, rising."""
        rng, count, streams = self.rng, len(self.positions), self.case.streams or 1
        found = []
        for _ in range(self.cuts):
            border = 128 * streams * rng.randrange(1, 9) + rng.randrange(-2, 3) * streams
            turn = count // 2 + rng.randrange(-2 * streams, 2 * streams + 1)  # of two passes, the end of the first
            found.append(
                rng.choice([1, count - 1, count, border, border, turn, *rng.choices(range(1, count + 1), k=5)])
            )
        return sorted(min(max(place, 1), count) for place in found)

    # -- playing

    def _chained(self, kind, topology, places):
        """Walk one job along the oracle, take a state at each cut, and go on from each of them, three times."""
        rng = self.rng
        self.left, self.begun = self.positions, 0
        often = rng.choice([0, 0, 0, 1, 7, 130])
        states = []
        job = Job(self, topology)
        note = f"{kind}: ranks, workers {topology}, a state each {often or 'cut'}"
        for place in places:
            self.trail = [f"{note}, cut behind {place} of {len(self.positions)}"]
            self._to(job, place, often if rng.random() < 0.3 or often != 1 else 0, ragged=rng.random() < 0.4)
            states.append((job.state(), sorted(position for left in job.left for position in left)))
        job.close()
        last = rng.randrange(len(places))
        for number, (state, left) in enumerate(states):
            self.trail = [f"{note}, cut {places[number]} of {len(self.positions)}"]
            self._resumed(kind, topology, state, left, whole=number == last)

    def _to(self, job, place, often, *, ragged):
        """Let a job give items up to a place: each worker what it owns before it, or (ragged) some more or less."""
        end = self.positions[place - 1] if place else -1
        for number, run in enumerate(job.runs):
            left = job.left[number]
            count = bisect_right(left, end)
            if ragged and len(job.runs) > 1:
                count = max(count + self.rng.randrange(-200, 200), 0)
            self._step(job, number, run, min(count, len(left)), often)

    def _step(self, job, number, run, count, often):
        """Take items of one worker, and compare them."""
        left, whole = job.left[number], self.whole
        noted = set(self.rng.sample(range(count), min(count, 6))) if not job.turns and self.rng.random() < 0.1 else ()
        taken, again = 0, []
        for position, item in islice(job.pairs[number], count):
            if position != left[taken] or shown(item) != whole[position]:
                job.left[number] = left[taken:]
                raise Differs(self._told(job, position, left[taken], item))
            if taken in noted:
                again.append((run.address(), whole[position]))
            taken += 1
            if often and taken % often == 0:
                run.state_dict() if self.case.streams is not None else run.snapshot()
        if taken < count:
            job.left[number] = left[taken:]
            raise Differs(self._told(job, None, left[taken], None))
        job.left[number] = left[taken:]
        if again:
            self.rng.shuffle(again)
            made = run.fetch(json.loads(json.dumps([address for address, _ in again])))
            if list(map(shown, made)) != [text for _, text in again]:
                raise Differs(f"items made again by their addresses are others: {[address for address, _ in again]}")

    def _resumed(self, kind, topology, state, left, *, whole):
        """Go on from a state, three times."""
        rng = self.rng
        for number in (1, 2, 3):
            self.left, self.begun = left, len(self.positions) - len(left)
            if kind == "other":
                topology = self._topology()
            entry = rng.choice(["run", "run", "load", "begun"])
            epoch = rng.choice([None, None, 0]) if entry != "begun" else None
            self.resumed += 1
            note = f"ranks, workers {topology}, {entry}, epoch set {epoch}, {len(left)} left"
            self.trail.append(f"resume {number}: {note}")
            if not left and self.case.streams is not None:
                self._follows(topology, state, entry)
                return
            job = Job(self, topology, state, entry, epoch)
            if rng.random() < 0.5:
                self.trail.append("a state before the first item")
                state = job.state()
                if rng.random() < 0.3:
                    job.close()
                    continue
            here = len(left) if number == 3 and whole else min(rng.randrange(1, WINDOW // number + 2), len(left))
            place = bisect_left(self.positions, left[here - 1]) + 1 if here else 0
            self._to(job, place, rng.choice([0, 0, 61]), ragged=number < 3 and rng.random() < 0.4)
            if number == 3 and whole:
                self._ended(job)
            left = sorted(position for mine in job.left for position in mine)
            state = job.state()
            job.close()

    def _follows(self, topology, state, entry):
        """See that the next epoch follows a state after the last item, on all workers; an iterator ends there."""
        self.trail.append("the next epoch")
        job, fresh = Job(self, topology, state, entry, turns=False), Job(self, topology, epoch=self.case.epoch + 1)
        for number, (pairs, due) in enumerate(zip(job.pairs, fresh.pairs, strict=True)):
            got, wanted = ([(n, shown(item)) for n, item in islice(source, 20)] for source in (pairs, due))
            wanted = [] if entry == "begun" else wanted
            if got != wanted:
                raise Differs(f"worker {number} begins the next epoch with {got[:1]}, and not with {wanted[:1]}")
        job.close()
        fresh.close()

    def _ended(self, job):
        for pairs in job.pairs:
            for position, item in islice(pairs, 1):
                raise Differs(f"an item more, behind the last: {position} {shown(item)[:200]}")

    def _told(self, job, position, wanted, item):
        """Say what is wrong, and how much of what follows is lost or twice."""
        got = [] if item is None else [shown(item)]
        try:
            for pairs in job.pairs:
                got += [shown(more) for _, more in pairs]
        except Exception as error:
            return f"at {wanted} an item is wrong, and then: {type(error).__name__}: {error}"
        due = Counter(self.whole[place] for left in job.left for place in left)
        found = Counter(got)
        lost, twice = sum((due - found).values()), sum((found - due).values())
        is_now = "nothing" if item is None else f"{position}: {got[0][:160]}"
        told = f"at {wanted} stands {self.whole[wanted][:160]}, and there came {is_now}"
        return f"{told}; of {sum(due.values())} items {lost} are lost, {twice} too many"


def judged(case, cuts=5, chains=("same", "other")):
    """Play a case; return the verdict.

    Args:
        case: the pipeline.
        cuts: how many places it is stopped at.
        chains: ``same`` topology, ``other`` ones.
    """
    play = Play(case, cuts, chains)
    play.whole = {}
    outcome, why = "same", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is wrong, so that nothing is to be warned of
            play.check()
        outcome = "same" if play.whole else "empty"
    except Differs as difference:
        outcome, why = "differs", str(difference)
        if play.oracle() != play.whole:
            outcome, why = "broken", f"the pipeline is not reproducible: {why}"
    except wds.WebDatasetError as error:
        outcome, why = "broken" if play.whole else "refused", _told(error)
    except Exception as error:
        outcome, why = "broken", _told(error)
    return Verdict(case, outcome, why, len(play.whole), play.resumed, play.trail)


def _told(error):
    import traceback

    places = traceback.extract_tb(error.__traceback__)[-2:]
    where = " < ".join(f"{place.filename.rpartition('/')[2]}:{place.lineno}" for place in reversed(places))
    return f"{type(error).__name__}: {str(error)[:300]} ({where})"


def shrunk(verdict, cuts=4, attempts=60):
    """Return the verdict on a smaller case that still fails: one with fewer stages.

    Args:
        verdict: of a case that fails.
        cuts: how many places each is stopped at.
        attempts: cases to try at most.
    """
    best = verdict
    place = len(best.case.steps) + len(best.case.tail) - 1
    while place >= 0 and attempts > 0:
        attempts -= 1
        smaller = judged(best.case.without(place), cuts)
        if smaller.failed and (smaller.outcome == best.outcome or best.outcome == "broken"):
            best = smaller
            place = min(place, len(best.case.steps) + len(best.case.tail))
        place -= 1
    return best
