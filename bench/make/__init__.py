"""`make`: a build on several nodes."""
