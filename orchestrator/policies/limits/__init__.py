"""How much may be sent with each key of a deployment, and with which one."""
