"""Planted bugs: the simulator is evidence only if it finds them."""
