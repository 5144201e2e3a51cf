"""Programs that use other people's clients; each runs in an environment of its own."""
