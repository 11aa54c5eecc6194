"""Home side of one process that is away: leaving, the stub, signals and stops, coming home."""
