"""What is decided about processes, and by what."""
