"""Which deployment serves a request, and what follows when one fails."""
