"""What is asked of the daemon by commands and by other nodes."""
