"""The sweep's trials in a database (Optuna): a queue that survives any kill.

The queue holds every trial of the sweep from the start, one *slot* each: of a grid with its parameters,
otherwise without, and the sampler fills them in when a worker takes it. A trial whose worker dies goes back
to the queue with its parameters and its workdir, so its run resumes.
"""

import fcntl
import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from jacreg_train.experiments.sweep_file import Parameter, Sweep, SweepError

GRACE_S = 30  # a worker that was silent for so long is dead
BEATS_PER_GRACE = 6
MAX_KILLS = 3  # a trial whose worker dies more often is given up: it may be what kills it
# A trial's attributes in the database.
SLOT = "slot"
REASON = "reason"  # why it failed
KILLS = "kills"  # how often its worker died

_UNFINISHED = (TrialState.WAITING, TrialState.RUNNING)


class SweepStudy:
    """A sweep's database.

    Args:
        sweep: the sweep; its content must be that of the database, `run_cap` aside.
        address: an SQLAlchemy address, as `sqlite:///runs/sweeps/a/sweep.db`.
        seed: of the samplers.
        grace_s: after how many seconds without a heartbeat a worker counts as dead.

    Raises:
        SweepError: the database can't be reached, or holds another sweep of this name.
    """

    def __init__(self, sweep: Sweep, address: str, *, seed: int = 0, grace_s: int = GRACE_S):
        self.sweep = sweep
        self._lock = _lock_path(address)
        self._seed = seed
        self._grace_s = grace_s
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # heartbeats are marked experimental
            try:
                self._storage = RDBStorage(
                    address,
                    engine_kwargs={"connect_args": {"timeout": 60}} if address.startswith("sqlite") else None,
                    heartbeat_interval=max(1, grace_s // BEATS_PER_GRACE),
                    grace_period=grace_s,
                    heartbeat_stale_trial_callback=_queue_again,
                )
            except Exception as failure:  # any driver's own
                raise SweepError(f"--storage: can't be reached ({' '.join(str(failure).split())[:200]})") from None
            self._study = optuna.create_study(
                study_name=sweep.name,
                storage=self._storage,
                load_if_exists=True,
                direction=StudyDirection[sweep.goal.upper()],
                pruner=_pruner(sweep),
            )
        self._check_same_sweep()

    def _check_same_sweep(self) -> None:
        content = {name: value for name, value in self.sweep.content.items() if name not in ("run_cap", "description")}
        here = json.loads(json.dumps(content, default=str))
        there = self._study.user_attrs.get("sweep")
        if there is None:
            self._study.set_user_attr("sweep", here)
        elif there != here:
            fields = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
            raise SweepError(
                f"the sweep {self.sweep.name!r} was started from another file ({', '.join(fields)} differ);"
                " choose another name or --workdir"
            )

    def fill(self, num_trials: int | None) -> int:
        """Queue the slots that are not there yet; returns how many the sweep has.

        Args:
            num_trials: how many in all; None: the whole grid.

        Raises:
            SweepError: random or bayes without a number of trials.
        """
        with self._exclusive():
            return self._fill(num_trials)

    def _fill(self, num_trials: int | None) -> int:
        taken = {trial.user_attrs.get(SLOT) for trial in self.trials()}
        if self.sweep.method == "grid":
            slots: Iterable[Mapping[str, Any]] = self.sweep.grid()
        elif num_trials is None:
            raise SweepError(f"method {self.sweep.method!r} goes on for ever: give run_cap in the file, or --trials")
        else:
            slots = [{}] * num_trials
        count = 0
        for slot, labels in enumerate(slots):
            if num_trials is not None and slot >= num_trials:
                break
            count += 1
            if slot not in taken:
                self._study.enqueue_trial(dict(labels), user_attrs={SLOT: slot})
        return count

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One process at a time. SQLite needs it: two processes that read a state and then change it both succeed."""
        if self._lock is None:
            yield
            return
        with open(self._lock, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def trials(self) -> list[FrozenTrial]:
        """One per slot: the latest try of it, in slot order; slots with nothing yet are waiting trials."""
        latest: dict[int, FrozenTrial] = {}
        for trial in self._study.get_trials(deepcopy=False):
            if SLOT in trial.user_attrs:
                latest[trial.user_attrs[SLOT]] = trial
        return [latest[slot] for slot in sorted(latest)]

    def unfinished(self) -> bool:
        return any(trial.state in _UNFINISHED for trial in self.trials())

    def claim(self) -> Trial | None:
        """Take the next waiting trial and sample what it lacks; None where none is waiting."""
        with self._exclusive():
            return self._claim()

    def _claim(self) -> Trial | None:
        waiting = [trial for trial in self.trials() if trial.state == TrialState.WAITING]
        if not waiting:
            return None
        # Seeded per slot: workers with one seed must not sample the same, and a rerun must.
        self._study.sampler = self._sampler(waiting[0].user_attrs[SLOT])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "heartbeat is supposed to be used with optimize": `beat` does it
            trial = self._study.ask()
        self.beat(trial)
        if SLOT not in trial.user_attrs:  # somebody else was faster, and Optuna made a trial up
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        if trial.user_attrs[SLOT] != waiting[0].user_attrs[SLOT]:
            self._study.sampler = self._sampler(trial.user_attrs[SLOT])
        for parameter in self.sweep.parameters:
            _suggest(trial, parameter)
        return trial

    def _sampler(self, slot: int) -> optuna.samplers.BaseSampler:
        seed = int(np.random.SeedSequence([self._seed, slot]).generate_state(1)[0])
        if self.sweep.method != "bayes":
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these options are marked experimental
            # constant_liar: workers that run at the same moment try different places.
            return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=5)

    def beat(self, trial: Trial) -> None:
        """Say that this trial's worker lives; due `BEATS_PER_GRACE` times within the grace time."""
        self._storage.record_heartbeat(trial._trial_id)

    def finish(self, trial: Trial, value: float) -> None:
        self._study.tell(trial, value, skip_if_finished=True)

    def prune(self, trial: Trial) -> None:
        self._study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)

    def fail(self, trial: Trial, reason: str) -> None:
        trial.set_user_attr(REASON, reason)
        self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def put_back(self, trial_id: int, *, reason: str, killed: bool) -> None:
        """Queue a trial again whose run ended early; with `killed`, at most `MAX_KILLS` times."""
        with self._exclusive():
            self._put_back(trial_id, reason=reason, killed=killed)

    def _put_back(self, trial_id: int, *, reason: str, killed: bool) -> None:
        try:
            self._storage.set_trial_user_attr(trial_id, REASON, reason)
            if not self._storage.set_trial_state_values(trial_id, state=TrialState.FAIL):
                return
        except optuna.exceptions.UpdateFinishedTrialError:
            return  # somebody else did
        _queue_again(self._study, self._storage.get_trial(trial_id), killed=killed)

    def recover(self, *, alone: bool = False) -> None:
        """Put back the trials of dead workers.

        Args:
            alone: no worker lives (the launcher starts and nobody else uses the database), so every running
                trial is put back. Otherwise those without a heartbeat within the grace time.
        """
        with self._exclusive():
            self._recover(alone)

    def _recover(self, alone: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not alone:
                optuna.storages.fail_stale_trials(self._study)
        stale = time.time() - self._grace_s
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Killed before its first heartbeat, a trial never counts as stale for Optuna.
            # (`claim` samples right after the first one.)
            started = trial.datetime_start
            never_beat = not trial.params and started is not None and started.timestamp() < stale
            if alone or never_beat:
                self._put_back(trial._trial_id, reason="its worker was killed", killed=not alone)

    def importances(self) -> dict[str, float]:
        """How much each parameter mattered, adding up to 1; empty where too few trials finished to say."""
        complete = [trial for trial in self.trials() if trial.state == TrialState.COMPLETE]
        if len(complete) < 4 or len({trial.value for trial in complete}) < 2:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optuna.importance.get_param_importances(self._study, evaluator=evaluator)


def _lock_path(address: str) -> str | None:
    """A file beside an sqlite database; None for the others, whose transactions lock the rows they read."""
    path = address.partition("sqlite:///")[2]
    return f"{path}.lock" if path else None


def _queue_again(study: optuna.Study, trial: FrozenTrial, killed: bool = True) -> None:
    kills = trial.user_attrs.get(KILLS, 0) + killed
    if kills <= MAX_KILLS:
        study.add_trial(
            optuna.create_trial(
                state=TrialState.WAITING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs=trial.user_attrs | {KILLS: kills},
                system_attrs=trial.system_attrs,
            )
        )


def _suggest(trial: Trial, parameter: Parameter) -> None:
    path, low, high = parameter.path, parameter.low, parameter.high
    if parameter.choices is not None:
        trial.suggest_categorical(path, list(parameter.choices))
    elif parameter.distribution == "int_uniform":
        trial.suggest_int(path, int(low), int(high))
    else:
        log = parameter.distribution.startswith("log_uniform")
        trial.suggest_float(path, low, high, log=log, step=parameter.step)


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    if sweep.hyperband is None:
        return optuna.pruners.NopPruner()
    # W&B's hyperband is one bracket of asynchronous successive halving.
    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=sweep.hyperband.min_iter, reduction_factor=sweep.hyperband.eta
    )
