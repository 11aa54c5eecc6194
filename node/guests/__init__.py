"""Processes of other nodes that run here."""
