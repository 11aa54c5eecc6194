"""Load vectors, gossip, lending policy and decisions: pure logic, where clock and random numbers are parameters."""
