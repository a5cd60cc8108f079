"""Reasons of a plan, for people."""
