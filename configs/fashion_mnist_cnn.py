"""Fashion-MNIST, a CNN with 3 convolutions, a penalty on its parameter Jacobian.

jacreg-train --config=configs/fashion_mnist_cnn.py
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.num_epochs = 10.0
    config.batch_size = 128
    config.dataset.name = "fashion_mnist"
    config.model.cnn.widths = (16, 32, 32)
    config.model.cnn.strides = (2, 2, 2)
    config.model.cnn.dense_width = 64
    config.model.haiku_cnn = config.model.cnn.copy_and_resolve_references()
    config.jacobian.weight = 1e-5
    config.jacobian.every_steps = 4
    config.evaluation.every_steps = 1000
    config.evaluation.jacobian_examples = 1000
    config.checkpoint.every_steps = 1000
    return config
