"""Real training with real faults: what the gate catches, and what it leaves alone."""
