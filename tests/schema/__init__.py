"""The published OpenAPI document against the gateway that publishes it."""
