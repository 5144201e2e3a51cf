"""What must always hold, each as a function from the journal to the places where it didn't."""
