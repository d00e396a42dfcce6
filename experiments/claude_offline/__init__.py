"""The claude policy without Claude: the Messages API on this machine, and a scripted expert behind it."""
