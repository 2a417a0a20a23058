import gc
import os

from hypothesis import settings

# The same examples in every run: what fails, fails again; a change is never judged by luck.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")

# Tests compile much and run little: with these XLA takes a tenth of its time, in processes that tests start too.
QUICK_COMPILE = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *QUICK_COMPILE])

gc.set_threshold(100_000, 20, 50)  # traces are many small objects that live long: looking for garbage took 5 %
