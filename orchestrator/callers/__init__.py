"""Who calls, and what they may: API keys and signed tokens, checked before anything is read."""
