"""Performance and memory physics of LLM training: arrays of jobs in, arrays of figures out."""
