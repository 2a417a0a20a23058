"""Evaluation on a test set: accuracy, likelihood, calibration and the Jacobian, each example once."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jacreg_train.training.devices import Devices, sum_over_devices
from jacreg_train.training.step import eval_apply
from models import Model

NUM_BINS = 15  # of equal width in confidence, for the calibration error

Batches = Iterable[dict[str, np.ndarray]]  # image uint8 [b, H, W, C], label int32 [b], mask float32 [b]


def make_task_evaluation(
    model: Model, normalize: Callable[[jax.Array], jax.Array], devices: Devices
) -> Callable[[Any, Batches], dict[str, float]]:
    """``evaluate((params, model_state), batches) -> metrics`` over all examples whose mask is 1.

    The metrics are ``test/accuracy``, ``test/nll`` (mean negative log-likelihood, in nats), ``test/ece``
    (expected calibration error: over 15 bins of equal width in confidence, the mean of |accuracy -
    confidence|, weighted by the bins' counts), and ``count``, the number of examples.
    """

    def sums(weights, batch):
        params, model_state = weights
        logits = eval_apply(model, model_state)(params, normalize(batch["image"])).astype(jnp.float32)
        mask = batch["mask"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        correct = (jnp.argmax(logits, axis=-1) == batch["label"]).astype(jnp.float32)
        confidence = jnp.max(jax.nn.softmax(logits), axis=-1)
        bins = jnp.clip((confidence * NUM_BINS).astype(jnp.int32), 0, NUM_BINS - 1)
        in_bin = jax.nn.one_hot(bins, NUM_BINS) * mask[:, None]
        return sum_over_devices(
            {
                "count": jnp.sum(mask),
                "nll": jnp.sum(jnp.where(mask > 0, losses, 0.0)),
                "correct": jnp.sum(correct * mask),
                "bin_gap": (correct - confidence) @ in_bin,
            }
        )

    program = devices.map(sums, num_batches=1)

    def evaluate(weights, batches: Batches) -> dict[str, float]:
        total = _add_up(program(weights, devices.put_batch(batch)) for batch in batches)
        count = float(total["count"])
        return {
            "count": count,
            "test/accuracy": float(total["correct"] / count),
            "test/nll": float(total["nll"] / count),
            # |accuracy - confidence| * count of a bin is |sum of (correct - confidence)| over it
            "test/ece": float(np.sum(np.abs(total["bin_gap"])) / count),
        }

    return evaluate


def make_jacobian_evaluation(
    model: Model, normalize: Callable[[jax.Array], jax.Array], devices: Devices, estimator: Callable[..., Any]
) -> Callable[..., dict[str, float]]:
    """``evaluate((params, model_state, key), batches, limit) -> {"test/squared_jacobian_norm": value}``.

    The value is the mean over the first ``limit`` examples (None: all) of the squared norm of the example's
    Jacobian, as the given estimator sees it (exact or unbiased as that is), with running statistics and no
    dropout.
    """

    def sums(weights, batch):
        params, model_state, key = weights
        first = batch["index"][0]
        apply_fn = eval_apply(model, model_state)
        estimate = estimator(apply_fn, params, normalize(batch["image"]), key, first_example=first)
        # A padded example's norm is dropped, not multiplied by 0, so that it could not even be infinite.
        norms = jnp.where(batch["mask"] > 0, estimate.per_example, 0.0)
        return sum_over_devices({"count": jnp.sum(batch["mask"]), "norms": jnp.sum(norms)})

    program = devices.map(sums, num_batches=1)

    def evaluate(weights, batches: Batches, limit: int | None = None) -> dict[str, float]:
        limited = _first_examples(batches, limit, devices.part)
        total = _add_up(program(weights, devices.put_batch(batch)) for batch in limited)
        return {"test/squared_jacobian_norm": float(total["norms"] / total["count"])}

    return evaluate


def _first_examples(batches: Batches, limit: int | None, part: tuple[int, int]) -> Iterator[dict[str, np.ndarray]]:
    """The batches with each example's index, masked and ended after ``limit`` examples of all parts."""
    start = 0
    for batch in batches:
        size = len(batch["mask"])
        index = start + part[0] * size + np.arange(size, dtype=np.int32)
        if limit is not None:
            batch = batch | {"mask": batch["mask"] * (index < limit)}
        yield batch | {"index": index}
        start += part[1] * size
        if limit is not None and start >= limit:
            return


def _add_up(results: Iterable[dict[str, jax.Array]]) -> dict[str, np.ndarray]:
    """Sums over batches in float64, so that nothing is lost over a large set."""
    total: dict[str, np.ndarray] = {}
    for result in results:
        for name, value in result.items():
            total[name] = total.get(name, np.float64(0.0)) + np.asarray(value, np.float64)
    return total
