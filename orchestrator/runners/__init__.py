"""What produces tokens: a model on this machine or a provider elsewhere, behind one Protocol."""
