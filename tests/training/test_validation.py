import math

import pytest
from ml_collections import ConfigDict

from configs import digits_cnn
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.validation import CHOICES, RANGES, check_overrides, leaves, validate


def refusal(config: ConfigDict, num_devices: int = 1) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(config, num_devices=num_devices)
    message = str(caught.value)
    assert "\n" not in message
    return message


def changed(**fields) -> ConfigDict:
    config = digits_cnn.get_config()
    with config.ignore_type():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@pytest.mark.parametrize("field", CHOICES)
def test_unknown_names_are_refused_with_the_choices(field):
    message = refusal(changed(**{field: "nonsense"}))
    assert f"config.{field} = 'nonsense'" in message
    assert all(choice in message for choice in CHOICES[field])


@pytest.mark.parametrize("field", RANGES)
def test_numbers_out_of_range_are_refused(field):
    low = float(RANGES[field][1:].split(",")[0])
    value = type(low)(low - 1)
    value = value if isinstance(dict(leaves(digits_cnn.get_config()))[field], float) else int(value)
    message = refusal(changed(**{field: value, "num_epochs": 1.0} if field != "num_epochs" else {field: value}))
    assert f"config.{field} = " in message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_infinite_and_undefined_numbers_are_refused(value):
    assert "config.jacobian.weight" in refusal(changed(jacobian__weight=value))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", "64"),
        ("batch_size", 64.0),
        ("batch_size", True),
        ("batch_size", None),
        ("jacobian.weight", None),
        ("jacobian.weight", "1"),
        ("optimizer.nesterov", 1),
        ("optimizer.clip_norm", (1.0,)),
        ("dataset.name", 3),
        ("wandb.tags", "a"),
        ("model.cnn.norm", 3),
    ],
)
def test_wrong_types_are_refused(field, value):
    assert f"config.{field} = {value!r}" in refusal(changed(**{field: value}))


def test_fields_that_no_config_has_and_missing_ones_are_refused():
    config = digits_cnn.get_config()
    config.optimizer.learning = 1.0
    assert "config.optimizer.learning: there is no such field; choose from" in refusal(config)
    config = digits_cnn.get_config()
    del config.optimizer.learning_rate
    assert "config.optimizer.learning_rate is missing" in refusal(config)
    config = digits_cnn.get_config()
    config.optimizer = ConfigDict()
    assert "is missing" in refusal(config)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"num_steps": 3}, "give one of them"),
        ({"num_epochs": None}, "give one of them"),
        ({"jacobian.batch_size": 24}, "divisor of config.batch_size = 64"),
        ({"jacobian.batch_size": 128}, "divisor of config.batch_size = 64"),
        ({"jacobian.context.name": "digits"}, "has no meaning with config.jacobian.points = 'batch'"),
        ({"jacobian.context.split": "test", "jacobian.points": "noise"}, "has no meaning"),
        ({"jacobian.points": "context"}, "needs a data set's name"),
        ({"optimizer.momentum": 0.9}, "its options are beta1, beta2, epsilon, weight_decay"),
        ({"optimizer.name": "adam", "optimizer.weight_decay": 0.1}, "has no meaning"),
        ({"optimizer.schedule": "constant", "optimizer.decay_steps": 5}, "its options are none"),
    ],
)
def test_impossible_combinations_are_refused(fields, expected):
    assert expected in refusal(changed(**fields))


def test_batches_must_divide_among_devices():
    assert "multiple of the 3 devices" in refusal(digits_cnn.get_config(), num_devices=3)
    message = refusal(changed(jacobian__batch_size=4), num_devices=8)
    assert "config.jacobian.batch_size = 4: choose a multiple of the 8 devices" in message


def test_overrides_of_what_is_not_chosen_are_refused():
    config = digits_cnn.get_config()
    check_overrides(config, ["model.cnn.kernel_size", "model.name", "seed"])
    with pytest.raises(ConfigError, match=r"has no meaning with config\.model\.name = 'cnn'"):
        check_overrides(config, ["model.resnet18.width"])
    with pytest.raises(ConfigError, match=r"has no meaning with config\.dataset\.name = 'digits'"):
        check_overrides(config, ["dataset.synthetic.num_classes"])
