"""Runs as other things: tests that can be pasted elsewhere."""
