"""What can go wrong before a target answers its first action."""

FORMS = "model, model+FAULT, model@X.Y.Z, vllm==X.Y.Z, vllm or path:DIR"
"""What names a target."""


class TargetError(Exception):
    """A target that cannot be had; the message is one line."""


class RegistryUnreachable(TargetError):
    """The package index did not answer, so nothing is known about the release."""
