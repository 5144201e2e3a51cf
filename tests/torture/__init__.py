"""Real processes broken on purpose, under load, again and again; see `make torture`."""
