"""When processes move, and where to."""
