"""Clusters a recipe can run on."""

from attune_lab.cluster.simulated import SimulatedCluster

__all__ = ["SimulatedCluster"]
