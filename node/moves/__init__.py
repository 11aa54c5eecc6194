"""Home's processes: which there are, where each is, their moves."""
