"""Measurements, the fit of the physics to them, and the report of what is left."""
