"""A model on this machine, in a child process that can be killed."""
