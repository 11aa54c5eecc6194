"""Guest side of one process: sandbox, arrival, signals, departure."""
