"""Training: `fit` trains a Recipe in a run folder. The modules are imported on first use."""
