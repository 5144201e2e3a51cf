"""What stands beside a gateway that may be broken on purpose, in the gateway's own process."""
