"""Attacks on farhome, which must fail to do what they once did."""
