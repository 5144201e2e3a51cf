"""The same engine, workers and policies under virtual time, where a seed replays a run exactly."""
