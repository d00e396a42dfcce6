"""From a run to ranked symptoms, each with the figure or the line behind it."""

from attune_lab.diagnosis.change import after_change
from attune_lab.diagnosis.figures import metrics
from attune_lab.diagnosis.signs import SIGNS, Sign, Symptom
from attune_lab.diagnosis.symptoms import Diagnosis, diagnose

__all__ = ["SIGNS", "Diagnosis", "Sign", "Symptom", "after_change", "diagnose", "metrics"]
