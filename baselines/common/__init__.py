"""What several tuners share; no tuner imports another."""
