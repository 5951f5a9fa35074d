"""Environments that ship with glmgym."""
