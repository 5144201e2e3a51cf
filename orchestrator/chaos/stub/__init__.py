"""Stand-ins for models and providers whose every token is known beforehand."""
