"""The trainability map in reports: its cells, tables, figures and the claims that it decides."""
