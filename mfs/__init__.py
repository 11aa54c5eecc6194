"""The cluster file tree: every node's files under /mfs/NODE."""
