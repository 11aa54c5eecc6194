"""The node daemon: configuration, peers, control socket, registry, admission, starting deputies and remotes."""
