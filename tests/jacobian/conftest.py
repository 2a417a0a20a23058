import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def float64():
    """The core is compared with its oracle in float64; float32 is the default elsewhere."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
