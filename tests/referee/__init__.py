"""The referee: random programs made of system calls, run natively and away, must find the same. docs/internals/referee.md."""
