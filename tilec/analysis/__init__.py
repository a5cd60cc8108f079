"""Analyses of programs and IR that planning and passes share."""
