"""Trials of what may go wrong: each file breaks something on purpose, many times, and looks at what happens."""
