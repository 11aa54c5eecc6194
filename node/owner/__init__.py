"""The owner of this node: what is seen of them, what is lent, what was lent so far."""
