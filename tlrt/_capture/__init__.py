"""Captured steps: recording the calls of a function, planning their memory, and making them again."""
