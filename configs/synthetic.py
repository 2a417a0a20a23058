"""Made-up images of any shape, for timing: no data to prepare, no evaluation before the end.

    jacreg-train --config=configs/synthetic.py --config.model.name=resnet18 \\
        --config.dataset.synthetic.image_shape="(64, 64, 3)"
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.num_steps = 100
    config.batch_size = 32
    config.dataset.name = "synthetic"
    config.log.every_steps = 10
    config.log.gradient_norms = False
    config.log.penalty_share_rounds = 10
    config.evaluation.every_steps = 100
    config.evaluation.jacobian_examples = 0
    config.checkpoint.every_steps = 100
    config.wandb.mode = "disabled"
    return config
