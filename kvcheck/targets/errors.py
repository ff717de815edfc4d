"""What can go wrong before a target answers its first action."""


class TargetError(Exception):
    """A target that cannot be had; the message is one line."""


class RegistryUnreachable(TargetError):
    """The package index did not answer, so nothing is known about the release."""
