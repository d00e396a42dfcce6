"""The adapters of the peers ask for what they mean to ask for, against stand-ins with the peers' interface."""

import importlib
import json
import sys
from pathlib import Path

import pytest

CALCULON = {
    "calculon/__init__.py": "",
    "calculon/llm.py": """
class System:
    def __init__(self, config):
        self.config = config
class Llm:
    class Application:
        def __init__(self, config):
            self.config = config
    class Execution:
        @classmethod
        def from_json(cls, config):
            assert config["tensor_par"] * config["pipeline_par"] * config["data_par"] == config["num_procs"]
            assert config["datatype"] == "float16"
            return config
    def __init__(self, application, log):
        self.application = application
    def compile(self, system, execution):
        self.execution = execution
    def run(self, system):
        self.peak = system.config["peak"]
    def get_stats_json(self, layers):
        return {"hidden": self.application.config["hidden"], "peak": self.peak, **self.execution}
""",
    "systems/a100_80g.json": json.dumps({"peak": 312}),
    "models/gpt3-175B.json": json.dumps({"hidden": 12288}),
    "validation/seqsel/tab5/gpt3-175B_seqsel.json": json.dumps({"datatype": "float16", "tensor_par": 8}),
}


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "benchmarks"), *sys.path])
    for name in ("calculon", "calculon.llm", "peers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("peers")


def test_layouts_fill_the_cluster(peers):
    layouts = list(peers.layouts())
    assert len(set(layouts)) == len(layouts) > 100
    assert all(one.tp * one.pp * one.dp == peers.GPUS and peers.BATCH % (one.mbs * one.dp) == 0 for one in layouts)


def test_calculon_is_asked_for_the_layout(peers, tmp_path):
    for name, text in CALCULON.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    price = peers.calculon(tmp_path)
    layout = peers.Layout(tp=4, pp=8, vpp=2, mbs=1, recompute="full")
    stats = price(layout)
    assert (stats["hidden"], stats["peak"]) == (12288, 312)
    assert (stats["tensor_par"], stats["pipeline_interleaving"], stats["tensor_par_comm_type"]) == (4, 2, "ar")
    assert (stats["data_par"], stats["optimizer_sharding"]) == (16, True)


def test_what_is_absent_is_a_reason(peers, tmp_path):
    assert "--calculon" in peers.calculon(None)
    assert "no checkout" in peers.simumax(tmp_path)
