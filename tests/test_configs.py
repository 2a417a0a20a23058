"""Every config is complete, commented and accepted, and its options are those of the tables."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import configs
from configs import default
from jacreg_train import jacobian
from jacreg_train.training.optimizers import OPTIMIZERS, options_of
from jacreg_train.training.validation import leaves, validate
from models import MODELS

EXPERIMENTS = sorted(
    path.stem for path in Path(configs.__file__).parent.glob("[a-z]*.py") if path.stem not in ("default", "recorded")
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_config_is_accepted_and_names_its_command(name):
    module = importlib.import_module(f"configs.{name}")
    validate(module.get_config(), num_devices=1)
    assert f"--config=configs/{name}.py" in (module.__doc__ or "")


def test_a_config_is_fresh_each_time():
    first, second = default.get_config(), default.get_config()
    first.model.cnn.kernel_size = 5
    assert second.model.cnn.kernel_size == 3


def test_every_field_of_the_default_has_a_comment():
    source = inspect.getsource(default)
    lines = re.findall(r"^    config\.\S+ = .*$", source, re.MULTILINE)
    assert len(lines) > 60
    silent = [line for line in lines if "#" not in line and not re.search(r"ConfigDict\(\)|_cnn\(\)|_synth", line)]
    assert [line for line in silent if ".wandb." not in line] == []


@pytest.mark.parametrize("name", MODELS)
def test_a_models_fields_are_its_arguments_with_their_defaults(name):
    fields = default.get_config().model[name]
    parameters = inspect.signature(MODELS[name]).parameters
    # dtype comes from config.precision
    assert set(fields) == set(parameters) - {"num_classes", "dtype"}
    for field, value in fields.items():
        assert value == parameters[field].default


def test_estimator_fields_are_the_options_of_all_estimators():
    options = {option for factory in jacobian.ESTIMATORS.values() for option in options_of(factory)}
    # wrt is a field of its own; training's penalty never couples examples, so there is no choice of joint
    assert set(default.get_config().jacobian.estimator) == (options | {"name"}) - {"wrt", "joint"}


def test_optimizer_fields_hold_the_options_of_all_optimizers():
    options = {option for factory in OPTIMIZERS.values() for option in options_of(factory)}
    assert options <= set(default.get_config().optimizer)


def test_leaves_are_dotted_names():
    assert dict(leaves(default.get_config()))["jacobian.estimator.name"] == "layerwise"
