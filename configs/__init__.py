"""Configs: ``default`` holds every field with its meaning; the others are children of it."""
