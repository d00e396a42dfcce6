"""Studies: many campaigns under equal conditions, and what they say of the tuners."""
