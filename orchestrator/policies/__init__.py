"""Queue, permits, breaker and retries: values that the actors consult; none knows another."""
