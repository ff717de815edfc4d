"""The reference model as a target."""
