"""The prover: the laws of the model on all numbers, not on some."""
