"""A small PyTorch trainer that the fault suite breaks: every layout trains the same model."""
