"""How YAML becomes frozen models: its lines, quantities and references, and a line per fault."""
