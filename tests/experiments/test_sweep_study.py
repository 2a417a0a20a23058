"""The queue of trials: nothing lost, nothing twice."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from optuna.trial import TrialState

from jacreg_train.experiments.sweep_file import SweepError, parse_sweep
from jacreg_train.experiments.sweep_study import MAX_KILLS, SLOT, SweepStudy


def sweep(method="grid", parameters=None, **changes):
    content = {
        "method": method,
        "metric": {"name": "test/accuracy", "goal": "maximize"},
        "parameters": parameters or {"a": {"values": [1, 2]}, "b": {"values": ["x", "y"]}},
    }
    return parse_sweep(content | changes)


def open_study(folder, *arguments, **options):
    return SweepStudy(sweep(*arguments, **options), f"sqlite:///{folder}/sweep.db", grace_s=6)


def finish_all(study, value=lambda trial: 1.0):
    while (trial := study.claim()) is not None:
        study.finish(trial, value(trial))


def test_a_grid_is_queued_once_and_never_grows(tmp_path):
    study = open_study(tmp_path)
    assert study.fill(None) == 4
    finish_all(study)
    again = open_study(tmp_path)
    assert again.fill(None) == 4
    assert again.claim() is None
    assert not again.unfinished()
    assert [trial.params for trial in again.trials()] == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_a_capped_grid_can_be_extended(tmp_path):
    study = open_study(tmp_path, run_cap=3)
    study.fill(3)
    finish_all(study)
    longer = open_study(tmp_path, run_cap=4)
    assert longer.fill(4) == 4
    assert [trial.state for trial in longer.trials()] == [TrialState.COMPLETE] * 3 + [TrialState.WAITING]


RANGES = {
    "log": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0},
    "whole": {"min": 1, "max": 5},
    "step": {"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.25},
    "list": {"values": [[1, 2], [3]]},
}


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_sampled_parameters_differ_and_repeat(tmp_path, method):
    samples = []
    for name in "xy":
        (tmp_path / name).mkdir()
        study = open_study(tmp_path / name, method, RANGES)
        assert study.fill(8) == 8
        finish_all(study, lambda trial: trial.params["log"])
        samples.append([trial.params for trial in study.trials()])
    assert samples[0] == samples[1]
    assert len({params["log"] for params in samples[0]}) == 8
    for params in samples[0]:
        assert 1e-4 <= params["log"] <= 1
        assert params["whole"] in range(1, 6)
        assert params["step"] in (0, 0.25, 0.5, 0.75, 1)
        assert params["list"] in ("[1, 2]", "[3]")


def test_random_without_an_end_is_refused(tmp_path):
    with pytest.raises(SweepError, match="give run_cap in the file, or --trials"):
        open_study(tmp_path, "random").fill(None)


def test_another_sweep_of_the_same_name_is_refused(tmp_path):
    open_study(tmp_path)
    with pytest.raises(SweepError, match=r"was started from another file \(parameters differ\)"):
        open_study(tmp_path, parameters={"a": {"values": [1, 3]}})


def test_a_database_that_cannot_be_reached(tmp_path):
    with pytest.raises(SweepError, match="--storage: can't be reached"):
        SweepStudy(sweep(), f"sqlite:///{tmp_path}/no/such/folder.db")


def test_a_trial_comes_back_with_its_parameters_and_its_slot(tmp_path):
    study = open_study(tmp_path, "random", RANGES)
    study.fill(2)
    first = study.claim()
    study.put_back(first._trial_id, reason="killed", killed=True)
    study.put_back(first._trial_id, reason="killed", killed=True)  # by another worker: no effect
    (waiting, other) = study.trials()
    assert (waiting.params, waiting.user_attrs[SLOT]) == (first.params, 0)
    assert other.params == {}
    study.finish(first, 1.0)  # a worker that was slow, not dead: too late
    assert study.trials()[0].state == TrialState.WAITING


def test_a_trial_that_kills_its_workers_is_given_up(tmp_path):
    study = open_study(tmp_path, parameters={"a": {"values": [1]}})
    study.fill(None)
    for _ in range(5):  # stopped by a person: does not count
        study.put_back(study.claim()._trial_id, reason="stopped", killed=False)
    for _ in range(MAX_KILLS + 1):
        study.put_back(study.claim()._trial_id, reason="killed", killed=True)
    assert study.claim() is None
    assert study.trials()[0].state == TrialState.FAIL


def test_silent_workers_lose_their_trials(tmp_path):
    study = open_study(tmp_path)
    study.fill(None)
    dead, alive = study.claim(), study.claim()
    for _ in range(8):
        time.sleep(1)
        study.beat(alive)
    study.recover()
    states = [trial.state for trial in study.trials()]
    assert states == [TrialState.WAITING, TrialState.RUNNING, TrialState.WAITING, TrialState.WAITING]
    assert study.claim().user_attrs[SLOT] in (0, 2)
    del dead


def test_a_launcher_alone_takes_back_everything(tmp_path):
    study = open_study(tmp_path)
    study.fill(None)
    study.claim()
    study.recover(alone=True)
    assert {trial.state for trial in study.trials()} == {TrialState.WAITING}


def test_many_workers_share_a_queue(tmp_path):
    """Each trial is claimed once; made-up trials of a lost race are not shown."""
    open_study(tmp_path, parameters={"a": {"values": list(range(12))}}).fill(None)

    def work(_):
        study = open_study(tmp_path, parameters={"a": {"values": list(range(12))}})
        claimed = []
        while study.unfinished():
            trial = study.claim()
            if trial is not None:
                claimed.append(trial.params["a"])
                study.finish(trial, 1.0)
        return claimed

    with ThreadPoolExecutor(4) as pool:
        claimed = sorted(itertools.chain(*pool.map(work, range(4))))
    assert claimed == list(range(12))


def test_importances_name_the_parameter_that_matters(tmp_path):
    study = open_study(tmp_path, parameters={"a": {"values": [1, 2, 3, 4]}, "b": {"values": [1, 2]}})
    study.fill(None)
    finish_all(study, lambda trial: float(trial.params["a"]))
    shares = study.importances()
    assert list(shares) == ["a", "b"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["a"] > 0.8


def test_hyperband_stops_what_is_not_among_the_best(tmp_path):
    band = {"type": "hyperband", "min_iter": 2, "eta": 3}
    study = open_study(tmp_path, parameters={"a": {"values": [9, 5, 1, 8]}}, early_terminate=band)
    study.fill(None)
    pruned = {}
    while (trial := study.claim()) is not None:
        value = trial.params["a"]
        pruned[value] = False
        for count in (1, 2, 3):
            trial.report(value, count)
            pruned[value] |= trial.should_prune()
        study.prune(trial) if pruned[value] else study.finish(trial, value)
    assert pruned == {9: False, 5: True, 1: True, 8: True}
