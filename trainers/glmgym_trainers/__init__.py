"""Losses, credit, algorithms, models and the engines that need torch."""
