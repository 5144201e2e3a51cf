"""Anthropic's Messages API in front of any deployment."""
