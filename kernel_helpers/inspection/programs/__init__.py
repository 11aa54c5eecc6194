"""Programs that processes execute."""
