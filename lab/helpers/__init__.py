"""Processes of a lab itself, beside its nodes: detached, they end when the lab does."""
