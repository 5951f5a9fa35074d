"""Sandbox backends: isolated boxes that run what a policy types."""
