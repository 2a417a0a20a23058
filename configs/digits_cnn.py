"""The embedded default: a small CNN on scikit-learn's digits with a penalty on its parameter Jacobian.

jacreg-train --config=configs/digits_cnn.py
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.num_epochs = 20.0
    config.batch_size = 64
    config.model.cnn.widths = (16, 32, 32)
    config.model.cnn.dense_width = 64
    config.model.haiku_cnn = config.model.cnn.copy_and_resolve_references()
    config.model.resnet18.width = 8
    config.jacobian.weight = 1e-4
    config.optimizer.learning_rate = 2e-3
    config.evaluation.every_steps = 200
    config.checkpoint.every_steps = 200
    return config
