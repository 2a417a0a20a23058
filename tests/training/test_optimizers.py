import jax
import jax.numpy as jnp
import pytest

from jacreg_train.training.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    make_optimizer,
    make_schedule,
    options_of,
)

PARAMS = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}


def step(optimizer, grads, params=PARAMS):
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return updates


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_pair_goes_downhill(name, schedule):
    decay = {"decay_steps": 10} if "decay_steps" in options_of(SCHEDULES[schedule]) else {}
    optimizer = make_optimizer(name, make_schedule(schedule, 0.1, **decay))
    updates = step(optimizer, jax.tree.map(jnp.ones_like, PARAMS))
    assert all(jnp.all(update < 0) for update in jax.tree.leaves(updates))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "weight_decay" in options_of(OPTIMIZERS[name])])
def test_weight_decay_shrinks_kernels_and_leaves_biases_alone(name):
    optimizer = make_optimizer(name, make_schedule("constant", 0.1), weight_decay=0.5)
    updates = step(optimizer, jax.tree.map(jnp.zeros_like, PARAMS))
    assert jnp.allclose(updates["kernel"], -0.05)
    assert jnp.all(updates["bias"] == 0)


def test_clipping_scales_the_whole_gradient():
    optimizer = make_optimizer("sgd", make_schedule("constant", 1.0), clip_norm=1.0)
    updates = step(optimizer, {"kernel": jnp.full((2, 2), 3.0), "bias": jnp.array([8.0, 0.0])})
    assert jnp.allclose(updates["kernel"], -0.3)
    assert jnp.allclose(updates["bias"], jnp.array([-0.8, 0.0]))


def test_schedules_at_known_steps():
    cosine = make_schedule("cosine", 2.0, warmup_steps=4, decay_steps=24)
    assert [float(cosine(step)) for step in (0, 2, 4, 14, 24, 99)] == pytest.approx([0, 1, 2, 1, 0, 0], abs=1e-6)
    linear = make_schedule("linear", 2.0, decay_steps=10, final_fraction=0.5)
    assert [float(linear(step)) for step in (0, 5, 10, 99)] == pytest.approx([2, 1.5, 1, 1])
    assert float(make_schedule("constant", 2.0)(99)) == 2.0
