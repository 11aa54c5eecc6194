"""Programs that move: small C, Python and shell programs whose output is the same in every run."""
