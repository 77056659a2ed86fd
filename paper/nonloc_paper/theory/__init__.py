"""The paper's statements, one function each: what is claimed, under which hypothesis, and whether it is so by value."""
