"""What was tried on farhome, and must fail to do what it did."""
