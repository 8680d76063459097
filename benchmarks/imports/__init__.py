"""Imports of public scripts, configurations and recipes: shares by kind."""
