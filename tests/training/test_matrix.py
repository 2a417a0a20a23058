"""Every estimator x model x way of parallelism trains on digits by flags alone."""

import pytest

from jacreg_train import jacobian
from jacreg_train.main import main
from jacreg_train.telemetry import read_records
from jacreg_train.training.devices import PARALLEL
from models import MODELS

TINY = {
    "cnn": ["--config.model.cnn.widths=(2,)", "--config.model.cnn.strides=(2,)"],
    "haiku_cnn": ["--config.model.haiku_cnn.widths=(2,)", "--config.model.haiku_cnn.strides=(2,)"],
    "resnet18": ["--config.model.resnet18.width=1"],
}
# ResNet18 takes long to compile: of its pairs this one is in the short run.
SHORT_RESNET = {("stochastic", "jit")}


def cases():
    for estimator in jacobian.ESTIMATORS:
        for model in MODELS:
            for parallel in PARALLEL:
                slow = model == "resnet18" and (estimator, parallel) not in SHORT_RESNET
                yield pytest.param(estimator, model, parallel, marks=[pytest.mark.slow] * slow)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize(("estimator", "model", "parallel"), cases())
def test_trains_by_flags_alone(estimator, model, parallel, data_dir, tmp_path):
    code = main(
        [
            "jacreg-train",
            f"--workdir={tmp_path}",
            f"--config.jacobian.estimator.name={estimator}",
            f"--config.model.name={model}",
            f"--config.parallel={parallel}",
            *TINY[model],
            f"--config.dataset.data_dir={data_dir}",
            "--config.num_epochs=None",
            "--config.num_steps=3",
            "--config.batch_size=4",
            "--config.evaluation.jacobian_examples=0",
            "--config.log.gradient_norms=false",
            "--config.log.penalty_share_rounds=0",
            "--config.wandb.mode=disabled",
            "--config.compilation_cache=off",
        ]
    )
    assert code == 0
    (record,) = read_records(tmp_path)
    assert record["step"] == 3
    assert record["train/penalty"] > 0
    assert record["train/loss"] == pytest.approx(record["train/task_loss"] + 1e-4 * record["train/penalty"])
    assert 0 <= record["test/accuracy"] <= 1
