"""What a journal proves: figures, invariants, faults that landed, and one outcome."""
