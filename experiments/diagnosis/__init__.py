"""How often the diagnosis is right, in simulated worlds where the truth is known without it."""
