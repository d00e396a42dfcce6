"""``optuna-gp``: Bayesian optimisation with Optuna's Gaussian process.

**What it is.** A Gaussian process with a Matern-5/2 kernel and one length scale a parameter, and log expected
improvement weighted with the probability that the limits are kept.

**Faithful.** The sampler is Optuna's own, untouched but for the number of points from which the acquisition is improved
locally: 5 instead of 10, as that is where the time goes.

**Added, for it to be strong here.** What `ModelTuner` says: warm start, legality, repeats, failures. Values are put to
it as their place in the order of declaration, and all limits as one, since each limit is one more process to fit.
Asking is dear, so it is asked once a proposal, and an illegal suggestion is moved to the nearest legal recipe.

**Source.** optuna/optuna@v5.0.0, optuna/samplers/_gp/sampler.py; Ament et al., arXiv 2310.20708 (log EI).
"""

from __future__ import annotations

import importlib.util

from attune_lab.contracts import TuningTask, UserError
from baselines.common.model_tuner import Habits, ModelTuner
from baselines.common.options import Option, read_options
from baselines.common.optuna_library import STUDY_OPTIONS, optuna, study_copy
from baselines.common.optuna_sampler import OptunaSampler
from baselines.common.points import Points

OPTIONS = {"n_startup_trials": Option(8, least=1), **STUDY_OPTIONS}

LOCAL_SEARCHES = 5
"""Starts of the local search for the best acquisition; with Optuna's 10 a campaign takes nearly twice as long."""


class OptunaGP(ModelTuner):
    """Optuna's GP sampler behind the tuner contract.

    Options: ``n_startup_trials`` of the sampler; ``storage`` and ``study``, where the trials are copied to.

    Raises:
        UserError: an unknown option, a value it cannot take, or PyTorch is missing.
    """

    name = "optuna-gp"

    def __init__(self, task: TuningTask) -> None:
        options = read_options(self.name, task.options, OPTIONS)
        if importlib.util.find_spec("torch") is None:
            raise UserError(f"the {self.name} tuner needs PyTorch for its Gaussian process; run pip install torch")
        points = Points(task)
        startup = options["n_startup_trials"]
        gp = optuna().samplers.GPSampler(n_startup_trials=startup, seed=task.seed)
        gp._n_local_search = LOCAL_SEARCHES  # no argument of the constructor
        sampler = OptunaSampler(points.choices, gp, encoding="index", limits="as one")
        copy = study_copy(self.name, options, task.seed, points.choices)
        super().__init__(task, points, sampler, Habits(startup=startup, asks=1), copy)
