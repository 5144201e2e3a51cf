"""Takes an inference request, waits its turn, and streams tokens back."""
