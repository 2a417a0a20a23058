"""The benchmark: what is measured (parts, cases, methods), how (measure, flops), how it is shown (render, plots)."""
