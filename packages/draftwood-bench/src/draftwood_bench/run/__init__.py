"""Run measurements: load models, measure units, resume stopped runs."""
