"""The chaos command line."""
