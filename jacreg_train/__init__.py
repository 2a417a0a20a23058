"""Train neural networks in JAX with terms on their Jacobian."""
