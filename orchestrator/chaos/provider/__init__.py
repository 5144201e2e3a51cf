"""The place of a provider: a stub that counts, or a proxy before a real one, both breakable."""
