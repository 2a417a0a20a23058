import pytest

from configs import default


@pytest.fixture
def config():
    """A run of 4 steps on tiny made-up images that compiles in about a second."""
    config = default.get_config()
    config.num_steps = 4
    config.batch_size = 4
    config.dataset.name = "synthetic"
    config.dataset.synthetic.image_shape = (4, 4, 1)
    config.dataset.synthetic.num_classes = 3
    config.dataset.synthetic.num_examples = 10
    config.model.cnn.widths = (2,)
    config.model.cnn.strides = (2,)
    config.model.cnn.dense_width = None
    config.jacobian.estimator.name = "exact"
    config.log.every_steps = 1
    config.log.gradient_norms = False
    config.log.penalty_share_rounds = 0
    config.evaluation.batch_size = 4
    config.wandb.mode = "disabled"
    return config
