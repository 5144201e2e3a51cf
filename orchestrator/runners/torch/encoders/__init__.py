"""Models that read texts and write none: vectors, ranks and classes, in a host of their own."""
