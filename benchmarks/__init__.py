"""Measurements of the operator: how exact it is, how much memory it takes, which backend is faster where."""
