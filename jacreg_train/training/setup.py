"""From a config to the parts of a run. The only module of training that unpacks a ``ConfigDict``."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from jacreg_train import jacobian
from jacreg_train.data import (
    AUGMENTATIONS,
    Batch,
    DataError,
    Dataset,
    evaluation_batches,
    load_dataset,
    normalize,
)
from jacreg_train.training.batches import Batches
from jacreg_train.training.devices import PARALLEL, Devices, make_mesh
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.evaluation import make_jacobian_evaluation, make_task_evaluation
from jacreg_train.training.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    make_optimizer,
    make_schedule,
    options_of,
)
from jacreg_train.training.penalty import PENALTIES
from jacreg_train.training.points import POINTS
from jacreg_train.training.state import TrainState, create_train_state
from jacreg_train.training.step import Objective, PenaltyTerm, can_share_forward, eval_apply
from models import Model, make_model


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a run, made from a config.

    Attributes:
      devices: how a batch is shared.
      num_train_examples: size of the training set.
      image_shape: of one image, ``(H, W, C)``.
      make_batches: () -> the stream of step batches, at its start.
      objective: what a step minimises.
      optimizer: turns gradients into updates.
      schedule: step -> learning rate.
      num_steps: length of the run.
      fresh: () -> a fresh state; traceable.
      init: () -> the same on the devices.
      evaluate: state -> the metrics ``test/*``.
    """

    devices: Devices
    num_train_examples: int
    image_shape: tuple[int, ...]
    make_batches: Callable[[], Batches]
    objective: Objective
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    num_steps: int
    fresh: Callable[[], TrainState]
    init: Callable[[], TrainState]
    evaluate: Callable[[TrainState], dict[str, float]]


def build(config: ConfigDict) -> Run:
    """Load the data, make the parts, and check that they fit one another. Nothing compiles here.

    Args:
      config: one that ``validation.validate`` accepts.

    Raises:
      ConfigError: parts that don't fit, or an argument that a model or an estimator refuses.
      DataError: a data set that cannot be had.
    """
    if config.parallel == "pmap" and jax.process_count() > 1:
        raise ConfigError(f"config.parallel = 'pmap': choose jit with {jax.process_count()} processes")
    if jax.local_device_count() % config.mesh.model:
        raise ConfigError(
            f"config.mesh.model = {config.mesh.model}: choose a divisor of the {jax.local_device_count()} devices of"
            " each process"
        )
    train_data, test_data, context_data = _load_data(config)
    model = _model(config, train_data)
    estimator_options = _given(config.jacobian.estimator, except_for=("name",))
    estimator = _refused_by(
        "jacobian.estimator",
        lambda: jacobian.make_estimator(config.jacobian.estimator.name, wrt=config.jacobian.wrt, **estimator_options),
    )
    num_points = config.jacobian.batch_size or config.batch_size
    objective = _objective(config, model, train_data, num_points, estimator_options)
    schedule = _schedule(config, train_data.num_examples)
    optimizer = make_optimizer(
        config.optimizer.name,
        schedule,
        clip_norm=config.optimizer.clip_norm,
        **_given(config.optimizer, only=options_of(OPTIMIZERS[config.optimizer.name])),
    )
    devices = PARALLEL[config.parallel](make_mesh(model=config.mesh.model))

    def fresh() -> TrainState:
        return create_train_state(model, optimizer, image_shape=train_data.image_shape, seed=config.seed)

    _check_model(model, fresh, train_data.image_shape)
    return Run(
        devices=devices,
        num_train_examples=train_data.num_examples,
        image_shape=train_data.image_shape,
        make_batches=lambda: Batches(
            train_data,
            context_data,
            batch_size=config.batch_size,
            num_points=num_points,
            devices=devices,
            seed=config.seed,
        ),
        objective=objective,
        optimizer=optimizer,
        schedule=schedule,
        num_steps=run_length(config, train_data.num_examples),
        fresh=fresh,
        init=lambda: devices.make(fresh),
        evaluate=_evaluation(config, model, test_data, devices, estimator, num_points),
    )


def run_length(config: Mapping[str, Any], num_examples: int) -> int:
    """The run's steps, where the config may give epochs instead."""
    return config["num_steps"] or math.ceil(config["num_epochs"] * num_examples / config["batch_size"])


def schedule_length(config: Mapping[str, Any], num_examples: int) -> dict[str, int]:
    """``optimizer.decay_steps``, where the config may leave it to the run's length; {} if it is not used."""
    options = config["optimizer"]
    if "decay_steps" not in options_of(SCHEDULES[options["schedule"]]):
        return {}
    return {"optimizer.decay_steps": options["decay_steps"] or run_length(config, num_examples)}


def _load_data(config: ConfigDict) -> tuple[Dataset, Dataset, Dataset | None]:
    data, context = config.dataset, config.jacobian.context
    train_data = _load("dataset", config, data.name, "train_split", data.train_split, data.data_dir)
    test_data = _load("dataset", config, data.name, "test_split", data.test_split, data.data_dir)
    if config.batch_size > train_data.num_examples:
        limit = train_data.num_examples
        raise ConfigError(f"config.batch_size = {config.batch_size}: {data.name!r} has only {limit} examples")
    if config.jacobian.points != "context":
        return train_data, test_data, None
    context_data = _load("jacobian.context", config, context.name, "split", context.split or "train", context.data_dir)
    if context_data.image_shape != train_data.image_shape:
        raise ConfigError(
            f"config.jacobian.context.name = {context.name!r} has images of shape {context_data.image_shape},"
            f" config.dataset.name = {data.name!r} of {train_data.image_shape}: choose sets of one shape"
        )
    return train_data, test_data, context_data


def _load(group: str, config: ConfigDict, name: str, split_field: str, split: str, data_dir: str | None) -> Dataset:
    """A data set whose refusals, now and when a record is read, name the config's field and value."""
    options = config.dataset.synthetic.to_dict() if name == "synthetic" else {}
    values = {"name": name, "split": split, "data_dir": data_dir, **options}
    fields = {"name": f"{group}.name", "split": f"{group}.{split_field}", "data_dir": f"{group}.data_dir"}

    @contextlib.contextmanager
    def named() -> Iterator[None]:
        try:
            yield
        except DataError as error:
            field = fields.get(error.argument, f"dataset.synthetic.{error.argument}")
            raise DataError(f"config.{field} = {values.get(error.argument)!r}: {error}", error.argument) from error

    with named():
        dataset = load_dataset(name, split=split, data_dir=data_dir, **options)

    def read(indices: np.ndarray) -> Batch:
        with named():
            return dataset.read(indices)

    return dataclasses.replace(dataset, read=read)


def _model(config: ConfigDict, train_data: Dataset) -> Model:
    name = config.model.name
    arguments = config.model[name].to_dict() if name in config.model else {}
    if config.precision != "float32":
        arguments["dtype"] = config.precision
    return _refused_by(f"model.{name}", lambda: make_model(name, num_classes=train_data.num_classes, **arguments))


def _objective(
    config: ConfigDict, model: Model, train_data: Dataset, num_points: int, options: dict[str, Any]
) -> Objective:
    core = config.jacobian
    term = None
    if core.weight > 0:
        term = PenaltyTerm(
            penalty=_refused_by(
                "jacobian",
                lambda: PENALTIES[core.penalty](
                    core.estimator.name, wrt=core.wrt, **_given(core, only=["target"]), **options
                ),
            ),
            points=POINTS[core.points](
                num_points=num_points, batch_size=config.batch_size, image_shape=train_data.image_shape
            ),
            num_points=num_points,
            weight=core.weight,
            every_steps=core.every_steps,
            shares_forward=can_share_forward(model, core.points, num_points, config.batch_size),
        )
    return Objective(
        model=model,
        normalize=normalize,
        augment=AUGMENTATIONS[config.dataset.augmentation],
        batch_size=config.batch_size,
        term=term,
    )


def _schedule(config: ConfigDict, num_examples: int) -> optax.Schedule:
    options = _given(config.optimizer, only=options_of(SCHEDULES[config.optimizer.schedule]))
    for field, value in schedule_length(config, num_examples).items():
        options[field.removeprefix("optimizer.")] = value
    return make_schedule(
        config.optimizer.schedule,
        config.optimizer.learning_rate,
        warmup_steps=config.optimizer.warmup_steps,
        **options,
    )


def _check_model(model: Model, fresh: Callable[[], TrainState], image_shape: tuple[int, ...]) -> None:
    """The model takes the images, and in evaluation mode it treats each example by itself. Only traces."""

    def trace() -> Any:
        state = fresh()
        apply_fn, inputs = eval_apply(model, state.model_state), jnp.zeros((2, *image_shape))
        jacobian.check_per_example(apply_fn, state.params, inputs)
        return apply_fn(state.params, inputs)

    _refused_by(f"model.{model.name}", lambda: jax.eval_shape(trace))


def _evaluation(
    config: ConfigDict, model: Model, test_data: Dataset, devices: Devices, estimator: Any, num_points: int
) -> Callable[[TrainState], dict[str, float]]:
    """The task's metrics, and the Jacobian's in batches as large as the training step's."""
    task = make_task_evaluation(model, normalize, devices)
    squared_norm = make_jacobian_evaluation(model, normalize, devices, estimator)
    limit = config.evaluation.jacobian_examples
    # One key for every evaluation: a stochastic estimator's noise is then the same from one to the next.
    key = devices.make(lambda: jax.random.key(config.seed))

    def batches(size: int):
        return evaluation_batches(test_data, batch_size=size, multiple_of=devices.count, part=devices.part)

    def evaluate(state: TrainState) -> dict[str, float]:
        metrics = task((state.params, state.model_state), batches(config.evaluation.batch_size))
        del metrics["count"]
        if limit != 0:
            metrics |= squared_norm((state.params, state.model_state, key), batches(num_points), limit)
        return metrics

    return evaluate


def _given(group: ConfigDict, *, only: list[str] | None = None, except_for: tuple[str, ...] = ()) -> dict[str, Any]:
    """The group's fields that are not None."""
    names = group if only is None else [name for name in only if name in group]
    return {name: group[name] for name in names if name not in except_for and group[name] is not None}


def _refused_by(field: str, make: Callable[[], Any]) -> Any:
    """``make()``, its refusals as errors of the config."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"config.{field}: {' '.join(str(error).split())}") from error
