"""CIFAR-10, ResNet18 with a 3x3 stem, crops and flips, a penalty on its parameter Jacobian.

jacreg-train --config=configs/cifar10_resnet18.py
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.num_epochs = 100.0
    config.batch_size = 128
    config.dataset.name = "cifar10"
    config.dataset.augmentation = "crop_flip"
    config.model.name = "resnet18"
    config.jacobian.weight = 1e-5
    config.jacobian.estimator.name = "stochastic"
    config.jacobian.estimator.num_probes = 1
    config.jacobian.estimator.probe = "cotangent"
    config.optimizer.name = "sgd"
    config.optimizer.learning_rate = 0.1
    config.optimizer.momentum = 0.9
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 5e-4
    config.optimizer.clip_norm = 1.0
    config.optimizer.warmup_steps = 1000
    config.evaluation.every_steps = 2000
    config.evaluation.jacobian_examples = 1000
    config.checkpoint.every_steps = 2000
    return config
