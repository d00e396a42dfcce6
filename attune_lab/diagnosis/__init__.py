"""From a run to ranked symptoms, each with the figure or the line behind it."""

from attune_lab.diagnosis.symptoms import SIGNS, Diagnosis, Sign, Symptom, diagnose, metrics

__all__ = ["SIGNS", "Diagnosis", "Sign", "Symptom", "diagnose", "metrics"]
