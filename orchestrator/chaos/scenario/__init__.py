"""Scenario files: one file for the simulation and for a live gateway."""
