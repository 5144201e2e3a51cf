"""OpenAI's Responses API in front of any deployment, without a store."""
