"""Pages to look at: one HTML file each, with all that it needs inside."""
