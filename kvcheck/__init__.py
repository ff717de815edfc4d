"""Property-based verification of the hybrid KV cache bookkeeping of vLLM v1."""

__version__ = "0.1.0"
