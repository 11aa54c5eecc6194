"""Benches: each compares ours with a named baseline of the same run, as ``python -m bench NAME [--json]``."""
