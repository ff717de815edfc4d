"""Pieces of exported tests: code that is read as text, and never imported here."""
