"""Tests run once more with programs and a library that are built with sanitizers."""
