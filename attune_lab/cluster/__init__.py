"""Clusters a recipe can run on."""

from attune_lab.cluster.simulated import SimulatedCluster, world_seed

__all__ = ["SimulatedCluster", "world_seed"]
