"""The paper's tables, ours beside theirs: each is a study file, a reading of its frames, and what both say.

    attune reproduce tuners --out results

Every figure is simulated, the agent decides by its offline ``catalog`` policy, and nothing is tuned to match the paper
(ATTUNE, arXiv 2610.17528), of which these tables quote the abstract.
"""
