"""`away`: what a process pays for being away."""
