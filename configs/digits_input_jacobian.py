"""Digits with the input-Jacobian penalty of Hoffman, Roberts and Yaida (2019, https://arxiv.org/abs/1908.02729).

One random projection of the logits per example: a probe on the sphere, one cotangent for each image.

jacreg-train --config=configs/digits_input_jacobian.py
"""

from ml_collections import ConfigDict

from configs import digits_cnn


def get_config() -> ConfigDict:
    config = digits_cnn.get_config()
    config.jacobian.wrt = "inputs"
    config.jacobian.weight = 1e-2
    config.jacobian.estimator.name = "stochastic"
    config.jacobian.estimator.num_probes = 1
    config.jacobian.estimator.distribution = "sphere"
    return config
