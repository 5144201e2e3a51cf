"""Breaks workers, providers and clients on purpose, in simulation and live, and judges the run."""
