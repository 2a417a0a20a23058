"""Every field of a config: meaning, unit, choices. Other configs call this and change some.

A field that reads ``optional(type)`` is None unless given; ``--config.field=None`` unsets it.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder as optional


def get_config() -> ConfigDict:
    """A fresh, complete config: digits, a CNN, a parameter-Jacobian penalty by the layerwise estimator."""
    config = ConfigDict()

    config.seed = 0  # of initialisation, data order, augmentation, dropout and probes
    config.num_steps = optional(int)  # length of the run in steps; give this or num_epochs
    config.num_epochs = optional(float)  # length of the run in passes over the training set
    config.batch_size = 64  # examples a step, over all devices; a multiple of their number (over mesh.model)
    config.parallel = "jit"  # how the devices share a batch: jit (a mesh) | pmap; the same numbers
    config.precision = "float32"  # of the computation: float32 | bfloat16 | float16; weights stay float32
    config.on_nonfinite = "stop"  # a loss, penalty or gradient that is no number: stop | skip (the step) and count
    config.compilation_cache = "auto"  # auto (.jax_cache beside the workdir) | off | a folder

    config.mesh = ConfigDict()
    config.mesh.model = 1  # devices that share each large array, for networks too large for one; with jit only

    config.dataset = ConfigDict()
    config.dataset.name = "digits"  # digits | synthetic | a TFDS name prepared as array_record, as cifar10
    config.dataset.data_dir = optional(str)  # of TFDS sets; None: $TFDS_DATA_DIR, ~/tensorflow_datasets
    config.dataset.train_split = "train"  # TFDS split expression, e.g. train[:90%]
    config.dataset.test_split = "test"  # TFDS split expression
    config.dataset.augmentation = "none"  # of training images: none | crop_flip (pad 4, crop, flip half)
    config.dataset.synthetic = _synthetic(image_shape=(32, 32, 3), num_classes=10, num_examples=1024, seed=0)

    config.model = ConfigDict()
    config.model.name = "cnn"  # cnn (Flax NNX) | haiku_cnn (Haiku) | resnet18 (Flax NNX)
    config.model.cnn = _cnn()
    config.model.haiku_cnn = _cnn()
    config.model.resnet18 = ConfigDict()
    config.model.resnet18.stem = "3x3"  # 3x3 (small images) | imagenet (7x7 at stride 2, then max-pooling)
    config.model.resnet18.norm = "group"  # group | batch; the penalty sees batch norm's running statistics
    config.model.resnet18.width = 64  # channels of the first stage; the last has eight times as many

    config.jacobian = ConfigDict()
    config.jacobian.weight = 1e-4  # of the penalty's mean per point, in the loss; 0: no penalty
    config.jacobian.wrt = "params"  # Jacobian of the logits with respect to: params | inputs
    config.jacobian.penalty = "frobenius"  # frobenius (sum of squares) | row_norm | row_sum; a row is one logit's
    config.jacobian.target = optional(float)  # row_norm: of each row's squared norm; row_sum: of its sum; None: 1
    config.jacobian.points = "batch"  # where: batch | context (a second data set) | noise (normal images)
    config.jacobian.batch_size = optional(int)  # points a step; None: batch_size; with batch a divisor of it
    config.jacobian.every_steps = 1  # it is taken every so many steps, there with as many times the weight
    config.jacobian.context = ConfigDict()  # the second data set, for points = context only
    config.jacobian.context.name = optional(str)  # as dataset.name
    config.jacobian.context.data_dir = optional(str)  # as dataset.data_dir
    config.jacobian.context.split = optional(str)  # TFDS split expression; None: train
    config.jacobian.estimator = ConfigDict()
    config.jacobian.estimator.name = "layerwise"  # exact | chunked | layerwise | stochastic | auto (measures)
    # Options are None (the estimator's own default) unless given; one that it doesn't take is refused.
    config.jacobian.estimator.example_chunk = optional(int)  # examples at a time; bounds memory, same value
    config.jacobian.estimator.output_chunk = optional(int)  # outputs at a time; bounds memory, same value
    config.jacobian.estimator.num_probes = optional(int)  # stochastic: random vectors per example
    config.jacobian.estimator.probe = optional(str)  # stochastic: cotangent (output space) | tangent
    config.jacobian.estimator.distribution = optional(str)  # stochastic: rademacher | gaussian | sphere
    config.jacobian.estimator.orthogonal = optional(bool)  # stochastic: probes of an example are orthogonal
    config.jacobian.estimator.memory_budget_gib = optional(float)  # auto: GiB a device; None: what is free
    config.jacobian.estimator.allow_stochastic = optional(bool)  # auto: whether probes may be chosen

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"  # sgd | adam | adamw
    config.optimizer.learning_rate = 1e-3  # at its peak
    config.optimizer.schedule = "cosine"  # constant | cosine | linear (both fall from the peak)
    config.optimizer.warmup_steps = 0  # steps of linear rise from 0 to the peak
    config.optimizer.decay_steps = optional(int)  # cosine, linear: step where the fall ends; None: num_steps
    config.optimizer.final_fraction = optional(float)  # cosine, linear: final rate over peak rate; None: 0
    config.optimizer.clip_norm = optional(float)  # largest norm of the whole gradient; None: no limit
    # Options are None (the optimiser's own default) unless given; one that it doesn't take is refused.
    config.optimizer.weight_decay = optional(float)  # sgd: L2 term, adamw: decoupled; kernels only, no biases
    config.optimizer.momentum = optional(float)  # sgd
    config.optimizer.nesterov = optional(bool)  # sgd
    config.optimizer.beta1 = optional(float)  # adam, adamw
    config.optimizer.beta2 = optional(float)  # adam, adamw
    config.optimizer.epsilon = optional(float)  # adam, adamw

    config.log = ConfigDict()
    config.log.every_steps = 50  # steps between two records
    config.log.gradient_norms = True  # of both parts of the loss; costs two backward passes on logged steps
    config.log.penalty_share_rounds = 5  # timed pairs of steps with and without penalty at the start; 0: none
    config.log.penalty_share_every_steps = optional(int)  # measure it again every so many steps

    config.evaluation = ConfigDict()
    config.evaluation.every_steps = 500  # steps between two evaluations on the test set; one more at the end
    config.evaluation.batch_size = 256  # examples at a time
    config.evaluation.jacobian_examples = optional(int)  # test examples for its norm; None: all; 0: none

    config.checkpoint = ConfigDict()
    config.checkpoint.every_steps = 500  # steps between two checkpoints; one more at the end and when stopped
    config.checkpoint.keep_latest = 2  # number of newest ones kept
    config.checkpoint.keep_best = 1  # number kept beside them for their test accuracy

    config.wandb = ConfigDict()
    config.wandb.mode = "offline"  # offline | online (after `wandb login`) | disabled
    config.wandb.project = "jacreg"  # how W&B files the run
    config.wandb.group = optional(str)
    config.wandb.name = optional(str)  # None: W&B's choice
    config.wandb.tags = ()  # tuple of strings
    return config


def _synthetic(**fields) -> ConfigDict:
    """Arguments of the made-up set: image_shape (H, W, C), num_classes, num_examples a split, seed."""
    return ConfigDict(fields)


def _cnn() -> ConfigDict:
    """Arguments of both CNNs, which compute the same function. The defaults have 3 convolutions."""
    config = ConfigDict()
    config.widths = (32, 64, 64)  # channels of each convolution
    config.strides = (1, 2, 2)  # by how much each shrinks the image
    config.kernel_size = 3  # of every convolution
    config.pooling = "none"  # what shrinks the image: none (the convolution's stride) | max | average
    config.readout = "flatten"  # flatten (all positions) | mean (their average)
    config.dense_width = 128  # units of the hidden dense layer; None: no such layer
    config.norm = "none"  # after each convolution: none | group | batch
    config.dropout_rate = 0.0  # share of the last layer's inputs set to zero in training, in [0, 1)
    return config
