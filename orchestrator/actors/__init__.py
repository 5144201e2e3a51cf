"""Engine, workers and supervisor: pykka actors on one event loop."""
