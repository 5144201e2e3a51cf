"""Requests that were made before: joined while they run, answered from what is kept afterwards."""
