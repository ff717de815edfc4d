"""For which sizes of blocks a law is said. Token counts are symbolic in all of them."""

from __future__ import annotations

RATIOS = (1, 2, 9, 33)
"""Literal ratios of one size to those that it is a multiple of; odd ones are as usual as powers of two."""
UNITS = (1, 2, 16, 272)
"""Literal sizes of h, in tokens."""

EVERY = "every size"
MULTIPLES = f"every h, other sizes literal multiples of it (ratios {', '.join(map(str, RATIOS))})"
LITERAL = f"literal sizes (h {', '.join(map(str, UNITS))}; ratios {', '.join(map(str, RATIOS))})"
NONE = ""
"""No size is said: there is none in the law, or whole layouts are literal."""
SIZES = (EVERY, MULTIPLES, LITERAL)
"""The most general first."""
