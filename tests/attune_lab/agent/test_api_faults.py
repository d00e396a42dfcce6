"""Whole campaigns over a faulty Messages API: each ends resumed or cleanly stopped, with its ledger, and no run twice.

The real SDK asks a local server; what answers there is a script, and the cluster is simulated.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attune_lab.agent.claude import ClaudeTuner
from attune_lab.agent.rules import RULES
from attune_lab.campaign import CampaignSpec, parse_budget
from attune_lab.campaign.store import read_campaign
from attune_lab.cluster.simulated import SimulatedCluster, world_seed
from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm.allowance import Allowance
from attune_lab.llm.claude import ClaudeChat
from attune_lab.llm.opening import TRANSCRIPT
from attune_lab.llm.recorded import RecordedChat
from attune_lab.llm.service import MAX_ATTEMPTS, Service
from attune_lab.llm.transcript import Transcript
from attune_lab.origin import origin_of
from attune_lab.replay import replay_campaign
from attune_lab.tuning import conduct
from attune_lab.workbench import Workbench, open_workbench
from experiments.claude_offline.messages_api import Fail, Raw, Reset, Say, Silent, call, messages_api, text
from tests.attune_lab.llm.talking import Clock

TINY = Path(__file__).parents[1] / "cli" / "tiny.sh"
CLUSTER, SEED, MODEL = "8xH100-SXM5-80GB", 103, "claude-opus-5"
OPTIONS = {"policy": "claude", "without": [rule.name for rule in RULES]}


def launch(lever: str) -> tuple[str, dict[str, Any]]:
    why = {"symptom": "exposed_tp_comm", "lesson": "none", "reason": "to see", "predicted_gain": 0.1}
    return "launch_run", {"lever": lever, **why}


STEPS = (
    [("list_files", {}), ("edit_setting", {"parameter": "tp", "value": 1})],
    [launch("tp 2 -> 1")],
    [("edit_setting", {"parameter": "mbs", "value": 2}), ("validate", {})],
    [launch("mbs 1 -> 2"), ("budget", {})],
    [("finish", {"choice": "003-search", "why": "the one that was measured"})],
)
FIRST, MIDDLE, LAST = 0, 3, 4
"""Steps at which the service fails; the middle one launches a run."""


def step_of(body: dict[str, Any]) -> int:
    """How many steps the model has made in a request."""
    made = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
    return sum(any(block.get("id", "").startswith("step") for block in blocks) for blocks in made)


def expert(body: dict[str, Any]) -> Say:
    """The next step, whatever went wrong before."""
    step = step_of(body)
    return Say([text("So."), *(call(tool, given, f"step{step}_{n}") for n, (tool, given) in enumerate(STEPS[step]))])


def failing(fault: Any, times: int = 1, places: tuple[int, ...] = (FIRST, MIDDLE, LAST)) -> Callable[[Any], Any]:
    """The expert, with so many times a fault in place of each of these steps."""
    left = dict.fromkeys(places, times)

    def script(body: dict[str, Any]) -> Any:
        step = step_of(body)
        if left.get(step):
            left[step] -= 1
            return fault
        return expert(body)

    return script


@cache
def bench() -> Workbench:
    return open_workbench(str(TINY), CLUSTER)


class Counting:
    """The simulated cluster; every start of a run is a line of a file, which outlives the process."""

    def __init__(self, out: Path, starts: Path, dies_in: str = "") -> None:
        self._inner = SimulatedCluster(bench().cluster, world_seed(SEED), log_dir=out / "logs")
        self._starts, self._dies_in = starts, dies_in
        self.spec = self._inner.spec
        self.startup_bound_s = self._inner.startup_bound_s

    def run(self, recipe: Any, steps: int, *, label: str, step_limit_s: float | None = None) -> Any:
        with self._starts.open("a") as file:
            file.write(label + "\n")
        report = self._inner.run(recipe, steps, label=label, step_limit_s=step_limit_s)
        if label == self._dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return report


def campaign(folder: Path, url: str, *, dies_in: str = "", wrapped: Any = lambda tuner: tuner, **service: Any) -> Any:
    """The result of the campaign in ``folder``, begun or resumed."""
    out, clock = folder / "out", Clock()

    def tuner(task: Any) -> Any:
        allowance = Allowance()

        def connect() -> ClaudeChat:
            settings = {"clock": clock, "sleep": clock.sleep, **service}
            return ClaudeChat(Service(MODEL, allowance=allowance, base_url=url, **settings))

        return wrapped(ClaudeTuner(task, RecordedChat(MODEL, connect, Transcript(out / TRANSCRIPT), allowance)))

    spec = CampaignSpec(
        str(TINY), bench().baseline, bench().cluster.name, parse_budget("16x"), "attune", SEED, OPTIONS
    )  # fmt: skip
    cluster = Counting(out, folder / "starts", dies_in)
    return conduct(spec, bench(), out, cluster=cluster, factory=tuner, origin=origin_of(bench().file, "attune"))


def from_its_records(task: Any) -> ClaudeTuner:
    """The tuner of a replay."""
    transcript = Transcript(task.desk.folder / TRANSCRIPT, writable=False)
    return ClaudeTuner(task, RecordedChat(MODEL, None, transcript))


def plain(data: dict[str, Any]) -> dict[str, Any]:
    """A result without where it lies and what the conversation cost."""
    kept = {key: value for key, value in data.items() if key not in ("out", "shipped_path", "llm")}
    return {**kept, "runs": [{**run, "log_path": None} for run in data["runs"]]}


def check_ledger(folder: Path, data: dict[str, Any], cut_off: int = 0) -> None:
    """Every run was launched once (but for those cut off), charged once, and the campaign replays from its records."""
    rows = read_campaign(folder / "out").runs
    starts = Counter((folder / "starts").read_text().split())
    assert set(starts) == {row.label for row in rows}
    assert sum(starts.values()) == len(rows) + cut_off
    spent = sum(row.charged_us or 0 for row in rows)
    assert data["gpu_hours_spent"] * 3.6e9 == pytest.approx(spent)
    assert data["gpu_hours_spent"] <= data["gpu_hours_budget"]
    assert replay_campaign(folder / "out", from_its_records).differences == ()


@pytest.fixture(autouse=True)
def _a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none is needed here")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with messages_api(expert) as api, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", "none is needed here")
        data = campaign(folder, api.url)
    assert len(api.seen) == len(STEPS)
    assert [run["purpose"] for run in data["runs"]].count("search") == 2
    assert data["gain_pct"] > 5
    check_ledger(folder, data)
    return plain(data)


GOOD = Say([text("Well."), call("list_files", {}, "toolu_1")])
PASSING = {
    **{f"status {status}": Fail(status) for status in (408, 409, 429, 500, 502, 503, 529)},
    "a wait it names": Fail(429, "30"),
    "cut within a block": replace(GOOD, cut="mid-block"),
    "cut after a block": replace(GOOD, cut="after-block"),
    "cut before the end": replace(GOOD, cut="before-stop"),
    "reset at once": Reset(),
    "reset while it answers": replace(GOOD, cut="after-block", ends_in="reset"),
    "an error while it answers": replace(GOOD, cut="mid-block", ends_in="error"),
    "no JSON": Raw("event: message_start\ndata: {nonsense\n\n"),
    "no message": Raw("{}", "application/json"),
    "a page of a proxy": Raw("<html>busy</html>", "text/html"),
    "bytes": Raw("\x00\x01" * 50),
    "deep JSON": Raw(f"event: message_start\ndata: {'[' * 100_000}\n\n"),
    "a call that is no JSON": Say([call("launch_run", '{"lever": oops}', "toolu_1")]),
    "a call cut short": Say([call("launch_run", '{"lever": "tp', "toolu_1")]),
    "two calls with one id": Say([call("budget", {}, "same"), call("budget", {}, "same")]),
    "a block nobody asked for": Say([{"type": "hologram", "data": "?"}]),
}  # fmt: skip
ODD = {
    "words alone": Say([text("I think I am done.")]),
    "cut off by its limit": Say([text("Let me think …")], "max_tokens"),
    "a launch cut off by its limit": Say([call(*launch("tp 2 -> 4"))], "max_tokens"),
    "a pause": Say([text("Searching …")], "pause_turn"),
    "no tool of ours": Say([call("bash", {"command": "id"})]),
    "an input that does not fit": Say([call("launch_run", {"lever": 7})]),
    "four at once": Say([call(tool, {}) for tool in ("budget", "validate", "list_files", "oops")]),
}  # fmt: skip
STOPPING = {
    **{f"status {status}": (Fail(status), 1, UserError) for status in (400, 401, 403, 404, 413)},
    "busy for good": (Fail(529), MAX_ATTEMPTS, EnvironmentFault),
    "broken for good": (Reset(), MAX_ATTEMPTS, EnvironmentFault),
    "a wait of a month": (Fail(429, "2600000"), 1, EnvironmentFault),
}


@pytest.mark.parametrize("kind", PASSING)
def test_what_passes_changes_nothing(tmp_path: Path, undisturbed: dict[str, Any], kind: str) -> None:
    with messages_api(failing(PASSING[kind])) as api:
        data = campaign(tmp_path, api.url)
    assert len(api.seen) == len(STEPS) + 3
    assert plain(data) == undisturbed
    check_ledger(tmp_path, data)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_answer_is_answered_and_the_work_goes_on(tmp_path: Path, undisturbed: Any, kind: str) -> None:
    with messages_api(failing(ODD[kind])) as api:
        data = campaign(tmp_path, api.url)
    assert plain(data) == undisturbed
    check_ledger(tmp_path, data)


@pytest.mark.parametrize("kind", STOPPING)
def test_what_stops_it_leaves_a_campaign_to_resume(tmp_path: Path, undisturbed: dict[str, Any], kind: str) -> None:
    fault, times, raised = STOPPING[kind]
    with messages_api(failing(fault, times)) as api:
        for _ in (FIRST, MIDDLE, LAST):
            with pytest.raises(raised) as stop:
                campaign(tmp_path, api.url)
            sentence = str(stop.value)
            assert "\n" not in sentence
            assert len(sentence) < 600
            assert replay_campaign(tmp_path / "out", from_its_records).differences == ()
        data = campaign(tmp_path, api.url)
    assert plain(data) == undisturbed
    check_ledger(tmp_path, data)


@pytest.mark.parametrize("fault", [Silent(), Silent(0.05), replace(GOOD, pause_s=0.2)], ids=["silent", "pings", "slow"])
def test_silence_is_given_up_and_resumed(tmp_path: Path, undisturbed: dict[str, Any], fault: Any) -> None:
    real = {"deadline_s": 0.5, "clock": time.monotonic, "sleep": time.sleep}
    stops: list[str] = []
    data = None
    with messages_api(failing(fault)) as api:
        while data is None:  # a busy machine may stop it once more than the faults do
            try:
                data = campaign(tmp_path, api.url, **real)
            except EnvironmentFault as stop:
                stops.append(str(stop))
    assert len(stops) >= 3
    assert all("run the same command again" in sentence for sentence in stops)
    assert plain(data) == undisturbed
    check_ledger(tmp_path, data)


@pytest.mark.parametrize("place", [FIRST, MIDDLE, LAST])
def test_a_model_that_declines_ends_the_search_and_not_the_campaign(tmp_path: Path, place: int) -> None:
    with messages_api(failing(Say([text("No.")], "refusal"), 99, (place,))) as api:
        data = campaign(tmp_path, api.url)
    assert data["stop_reason"] == f"the tuner stopped: {MODEL} declined to go on"
    assert data["kept_baseline"] is (place == FIRST)
    assert campaign(tmp_path, "http://127.0.0.1:1") == data, "a finished campaign asks nobody"
    check_ledger(tmp_path, data)


class Dying:
    """A tuner whose process is killed between the model's answer, which is recorded, and what it asks for."""

    def __init__(self, tuner: ClaudeTuner, nth: int) -> None:
        self._tuner, self._left = tuner, nth

    def ask(self) -> Any:
        proposal = self._tuner.ask()
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        return proposal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tuner, name)


KILLS = {
    "between the first answer that launches and its run": {"wrapped": lambda tuner: Dying(tuner, 1)},
    "between the second one and its run": {"wrapped": lambda tuner: Dying(tuner, 2)},
    "between the choice and the finals": {"wrapped": lambda tuner: Dying(tuner, 3)},
    "during the twin": {"dies_in": "002-twin"},
    "during the first run of the search": {"dies_in": "003-search"},
    "during the second one": {"dies_in": "004-search"},
    "during the final run": {"dies_in": "finalist-1"},
}


@pytest.mark.parametrize("kill", KILLS)
def test_kill_9_loses_nothing_and_launches_nothing_twice(
    tmp_path: Path, undisturbed: dict[str, Any], kill: str
) -> None:
    with messages_api(expert) as api:
        process = multiprocessing.get_context("fork").Process(
            target=campaign, args=(tmp_path, api.url), kwargs=KILLS[kill]
        )  # fmt: skip
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        before = len(api.seen)
        assert replay_campaign(tmp_path / "out", from_its_records).differences == ()
        data = campaign(tmp_path, api.url)
    assert plain(data) == undisturbed
    assert len(api.seen) == len(STEPS), f"{before} answers were on the disk, and none is paid for twice"
    check_ledger(tmp_path, data, cut_off=int("dies_in" in KILLS[kill]))
    assert json.loads((tmp_path / "out" / "result.json").read_text())["runs"]
