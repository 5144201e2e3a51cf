"""Breaking a running gateway, and everything that makes that safe."""
