"""The other nodes: who they are, calls to them, gossip, who is let in and taken out."""
