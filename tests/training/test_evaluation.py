import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import jacobian
from jacreg_train.data import evaluation_batches, load_dataset, normalize
from jacreg_train.training.devices import PARALLEL, make_mesh
from jacreg_train.training.evaluation import make_jacobian_evaluation, make_task_evaluation
from models import make_model

DATA = load_dataset("synthetic", split="test", image_shape=(4, 4, 1), num_classes=3, num_examples=10)
MODEL = make_model("cnn", num_classes=3, widths=(2,), strides=(2,), dense_width=None)
PARAMS, STATE = MODEL.init(jax.random.key(0), jnp.zeros((1, 4, 4, 1)))
DEVICES = PARALLEL["jit"](make_mesh(jax.devices()[:1]))
ALL = DATA.read(np.arange(10))


def test_metrics_are_those_of_all_examples_whatever_the_batches():
    evaluate = make_task_evaluation(MODEL, normalize, DEVICES)
    logits = MODEL.apply(PARAMS, STATE, normalize(ALL["image"]))[0]
    probabilities = np.asarray(jax.nn.softmax(logits), np.float64)
    confidence, guess = probabilities.max(1), probabilities.argmax(1)
    correct = guess == ALL["label"]
    ece = 0.0
    for low in np.arange(15) / 15:
        bin_ = (confidence >= low) & (confidence < low + 1 / 15)
        if bin_.any():
            ece += bin_.mean() * abs(correct[bin_].mean() - confidence[bin_].mean())
    for batch_size in (4, 10, 16):
        metrics = evaluate((PARAMS, STATE), evaluation_batches(DATA, batch_size=batch_size))
        assert metrics["count"] == 10
        assert metrics["test/accuracy"] == pytest.approx(correct.mean())
        assert metrics["test/nll"] == pytest.approx(
            -np.log(probabilities[np.arange(10), ALL["label"]]).mean(), rel=1e-5
        )
        assert metrics["test/ece"] == pytest.approx(ece, rel=1e-4)


@pytest.mark.parametrize("limit", [None, 6])
def test_the_jacobian_norm_is_the_mean_over_the_examples_asked_for(limit):
    estimator = jacobian.make_estimator("exact")
    evaluate = make_jacobian_evaluation(MODEL, normalize, DEVICES, estimator)
    apply_fn = lambda params, inputs: MODEL.apply(params, STATE, inputs)[0]
    per_example = estimator(apply_fn, PARAMS, normalize(ALL["image"])).per_example
    key = jax.random.key(0)
    metrics = evaluate((PARAMS, STATE, key), evaluation_batches(DATA, batch_size=4), limit)
    assert metrics["test/squared_jacobian_norm"] == pytest.approx(float(jnp.mean(per_example[:limit])), rel=1e-5)
