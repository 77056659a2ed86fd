"""Exponentials, solutions and eigenvalues of an operator from its products with vectors alone."""
