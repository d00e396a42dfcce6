"""Evolution of recipes by language-model mutation, after AlphaEvolve and its open stand-ins.

**Source:** AlphaEvolve, arXiv 2506.13131; OpenEvolve, algorithmicsuperintelligence/openevolve@411fb59; ShinkaEvolve,
SakanaAI/ShinkaEvolve@9912af1. Those systems evolve programs; here the genome is a recipe.

Faithful: islands with migration, an archive, a model that mutates one parent and is shown two inspirations and the last
error, kinds of patches (one change, several, crossover) in ShinkaEvolve's proportions, parents mostly from the better
ones as in OpenEvolve, a cascade of ever dearer judgements: validity, expected memory, a run. Reconstructed: fitness is
the measured step time alone, and a duplicate is a recipe known already rather than a near text.

Defaults that do not fit a budget of some tens of runs and were replaced by ShinkaEvolve's small setting: OpenEvolve's
population of 1000, archive of 100, 5 islands, migration every 50 generations and 10,000 iterations; here 2 islands of
8, an archive of 20, migration every 10 runs. Grids of features (MAP-elites) and the choice among several models are
left out: neither fills in so few runs.
"""

from __future__ import annotations

from baselines.agents.evolving import EvolvingDesk


class Evolve(EvolvingDesk):
    """Evolution on islands from the recipe as it came in. All mechanism and all options are `EvolvingDesk`'s.

    Raises:
        UserError: an unknown option or value.
    """

    name = "evolve"
