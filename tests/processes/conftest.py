"""Puts this folder on the path, so that the tests in its sub-folders can import the chains, graphs and stages here."""
