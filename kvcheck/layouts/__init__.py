"""Named layouts."""
