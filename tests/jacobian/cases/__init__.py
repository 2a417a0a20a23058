"""Small functions of every kind that the estimators have to serve: name -> (apply_fn, params, inputs)."""

from tests.jacobian.cases import control_flow, embeddings, layers, leaves, picking, sharing
from tests.jacobian.cases.table import CASES, IDS, Case, X, convolve, normal, standardize, weights

KINDS = (layers, embeddings, sharing, control_flow, picking, leaves)  # importing them fills the table

__all__ = ["CASES", "IDS", "KINDS", "Case", "X", "convolve", "normal", "standardize", "weights"]
