"""What goes between programs: framed msgpack on sockets, and the data connections of a move."""
