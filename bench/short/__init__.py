"""The short bench: a few cases of other benches, held against their record."""
