import gc

import jax
from hypothesis import settings

# The same examples in every run: what fails, fails again; a change is never judged by luck.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")

# Tests compile much and run little. Runs in processes of their own compile as a user's do.
jax.config.update("jax_disable_most_optimizations", True)
gc.set_threshold(100_000, 20, 50)  # traces are many small objects that live long: looking for garbage took 5 %
