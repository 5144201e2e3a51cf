"""Providers that stream over HTTP."""
