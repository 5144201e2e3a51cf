"""`orchestrator chaos`: one file a group of commands."""
