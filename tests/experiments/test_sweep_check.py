"""A sweep that doesn't fit the config is refused before its first trial, on one line."""

import pytest

from jacreg_train.experiments.sweep_check import check_sweep
from jacreg_train.experiments.sweep_command import main
from jacreg_train.experiments.sweep_file import SweepError, parse_sweep

BASE = ["--config=configs/digits_cnn.py"]


def sweep(method="grid", metric="test/accuracy", **parameters):
    content = {"method": method, "metric": {"name": metric}, "parameters": parameters, "run_cap": 2}
    return parse_sweep(content)


def test_a_sweep_that_fits():
    check_sweep(
        sweep(
            **{
                "jacobian.weight": {"values": [0, 1e-3]},
                "jacobian.estimator": {"values": [{"name": "layerwise"}, {"name": "stochastic", "num_probes": 2}]},
                "model.cnn.widths": {"values": [[8, 8, 8], [16, 16, 16]]},
                "optimizer.clip_norm": {"values": [None, 1.0]},
            }
        ),
        BASE,
    )


def test_nested_parameters_keep_their_neighbours():
    """`{model: {cnn: {dense_width: 8}}}` over a default keeps the other fields, as a flag does."""
    check_sweep(sweep(model={"parameters": {"cnn": {"parameters": {"dense_width": {"values": [8]}}}}}), BASE)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"jacobian.wait": {"values": [1]}}, r"parameters\.jacobian\.wait: .*did you mean weight"),
        ({"jacobain.weight": {"values": [1]}}, r"parameters\.jacobain\.weight: .*jacobian"),
        ({"jacobian.weight": {"values": [0.1, "much"]}}, r"parameters\.jacobian\.weight: .*much"),
        ({"seed": {"min": 0.0, "max": 1.5}, "batch_size": {"value": 8}}, r"parameters\.seed: "),
        ({"jacobian.estimator.name": {"values": ["layerwise", "layer"]}}, "'layer'.*layerwise"),
        ({"jacobian.weight": {"values": [-1.0]}}, "jacobian.weight = -1.0"),
        ({"jacobian.estimator": {"values": [{"name": "exact", "num_probes": 2}]}}, "num_probes"),
        ({"model.resnet18.width": {"values": [8]}}, "config.model.resnet18.width has no meaning"),
        ({"num_steps": {"value": "x"}, "seed": {"values": [1]}}, "num_steps"),
    ],
)
def test_what_the_config_refuses(parameters, message):
    method = "random" if "min" in next(iter(parameters.values())) else "grid"
    with pytest.raises(SweepError, match=message) as caught:
        check_sweep(sweep(method, **parameters), BASE)
    assert "\n" not in str(caught.value)


def test_an_unknown_metric():
    with pytest.raises(SweepError, match=r"metric\.name = 'test/acuracy': must be one of .*did you mean test/accuracy"):
        check_sweep(sweep(metric="test/acuracy", seed={"values": [1]}), BASE)


def test_a_field_given_as_flag_and_as_parameter():
    with pytest.raises(SweepError, match=r"parameters\.seed: also given as the flag --config\.seed"):
        check_sweep(sweep(seed={"values": [1]}), [*BASE, "--config.seed=3"])


def test_the_command_line_says_it_on_one_line(tmp_path, capsys):
    path = tmp_path / "a.yaml"
    path.write_text("method: grid\nmetric: {name: test/nll}\nparameters: {seed: {values: [x]}}")
    assert main([f"--sweep={path}", "--workdir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sweep.py: parameters.seed: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_flags_that_are_none(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--sweep=a.yaml", "--seeed=3"])
    assert caught.value.code == 2
    assert "--config.FIELD=VALUE" in capsys.readouterr().err
