"""Studies: many campaigns from one YAML file, on this machine or a cluster, with one table of campaigns and one of runs."""
