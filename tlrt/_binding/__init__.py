"""Calls the C library: finds and loads it, converts arguments, wraps handles, and reports to observers."""
