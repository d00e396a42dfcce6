"""Logs of every stack printed from figures, for tests to read back. Templates are the stacks' own format strings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Step:
    """Figures of one step, such as every stack prints with its own digits."""

    number: int
    seconds: float
    loss: float
    norm: float
    rate: float
    tflops: float


@dataclass(frozen=True)
class Digits:
    """How exact the stack prints: (absolute, relative) error of each figure; None for what it does not print."""

    seconds: tuple[float, float] | None = None
    loss: tuple[float, float] | None = None
    norm: tuple[float, float] | None = None
    rate: tuple[float, float] | None = None
    tflops: tuple[float, float] | None = None


def megatron(step: Step, *, version: str = "core_v0.19") -> str:
    """One iteration line."""
    stamp = {"v2.0": " ", "core_v0.6": " [2026-01-01 00:00:01] "}.get(version, " [2026-01-01 00:00:01.123456] ")
    rate = "3E" if version == "v2.0" else "6E"
    return (
        f"{stamp}iteration {step.number:8d}/{10**6:8d} | consumed samples: {step.number * 64:12d} |"
        + (" skipped samples:            0 |" if version == "core_v0.19" else "")
        + f" elapsed time per iteration (ms): {step.seconds * 1000:.1f} |"
        + ("" if version == "v2.0" else f" throughput per GPU (TFLOP/s/GPU): {step.tflops:.1f} |")
        + (" energy per GPU (J/iter/GPU): 512.1 | power per GPU (W/GPU): 640.2 |" if version == "core_v0.19" else "")
        + f" learning rate: {1.5e-4:.{rate}} | global batch size: {64:5d} | lm loss: {step.loss:.6E} |"
        + (" load_balancing_loss: 1.02 | mtp_1 loss: 9.100000E+00 |" if version == "core_v0.19" else "")
        + f" loss scale: 1.0 | grad norm: {step.norm:.3f} |"
        + (" num zeros: None | params norm: 1.500 |" if version == "core_v0.19" else "")
        + " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def bridge(step: Step) -> str:
    """Bridge's own line, then Megatron's without throughput."""
    line = megatron(step, version="core_v0.6").replace(f" throughput per GPU (TFLOP/s/GPU): {step.tflops:.1f} |", "")
    return f"Step Time : {step.seconds:.2f}s GPU utilization: {step.tflops:.1f}MODEL_TFLOP/s/GPU\n{line}"


def torchtitan(step: Step, *, now: datetime, colours: bool = True) -> str:
    """A metrics line; its time stamp is when the step ended."""
    red, plain = ("\x1b[31m", "\x1b[39m") if colours else ("", "")
    return (
        f"[titan] {now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d} - root - INFO - "
        f"{red}step: {step.number:2}  {plain}loss: {step.loss:8.5f}  {red}grad_norm: {step.norm:7.4f}  "
        f"memory: 41.25GiB(52.13%)  {plain}tps: {round(step.rate):,}  tflops: {step.tflops:,.2f}  mfu: 41.05%{plain}"
    )


def deepspeed_engine(step: Step, *, batch: int = 64) -> str:
    """The scheduler's and the timer's line of a step."""
    return (
        f"[2026-01-01 00:00:01,123] [INFO] [logging.py:107:log_dist] [Rank 0] step={step.number}, skipped=0, "
        "lr=[0.0001, 0.0001], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
        f"[2026-01-01 00:00:01,124] [INFO] [timer.py:264:stop] epoch=0/micro_step=1/global_step={step.number}, "
        f"RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec={batch / step.seconds}, MemAllocated=1.5GB, "
        "MaxMemAllocated=2.5GB"
    )


def deepspeed_pipeline(step: Step) -> str:
    """The pipeline engine's line."""
    return (
        f"steps: {step.number} loss: {step.loss:0.4f} iter time (s): {step.seconds:0.3f} "
        f"samples/sec: {64 / step.seconds:0.3f}"
    )


def nemo(step: Step) -> str:
    """The line of NeMo 2, which counts from 0."""
    return (
        f"Training epoch 0, iteration {step.number - 1}/{10**6} | lr: 1.5e-06 | global_batch_size: 64 | "
        f"global_step: {step.number - 1} | max_memory_reserved: 127785762816 | reduced_train_loss: {step.loss:.4g} | "
        f"train_step_timing in s: {step.seconds:.4g} | TFLOPS_per_GPU: {step.tflops:.4g} | consumed_samples: 64 | "
        f"val_loss: 1.5"
    )


def nemo_bar(step: Step) -> str:
    """A state of the progress bar before NeMo 2; it redraws itself."""
    return (
        f"\rEpoch 0: :   1%|▏         | {step.number}/1000000 [00:30<50:00, 0.33it/s, v_num=ab-c, "
        f"reduced_train_loss={step.loss:.3g}, global_step={step.number - 1:.1f}, consumed_samples=64.0, "
        f"train_step_timing in s={step.seconds:.3g}]"
    )


def hf_trainer(step: Step, *, elapsed_s: int, strings: bool = False) -> str:
    """A state of the bar, then the dictionary of the step."""
    hours, minutes, seconds = elapsed_s // 3600, elapsed_s // 60 % 60, elapsed_s % 60
    clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"
    values = {"loss": round(step.loss, 4), "grad_norm": step.norm, "learning_rate": 1e-5, "epoch": 0.1}
    entry = {name: f"{value:.4g}" for name, value in values.items()} if strings else values
    return f"\r  1%|▏         | {step.number}/1000000 [{clock}<50:00,  3.00s/it]\r      \r{entry}"


def nanotron(step: Step) -> str:
    """The iteration line with three digits and suffixes."""
    return (
        f"[default0]:01/01/2026 00:00:01 [INFO|DP=0|PP=0|TP=0]: iteration: {step.number} / 1000000 | "
        f"consumed_tokens: 1.05M | time_per_iteration_ms: {human(step.seconds * 1000)} | tokens_per_sec: 1.2M | "
        f"tokens_per_sec_per_gpu: {human(step.rate)} | global_batch_size: 1.05M | grad_norm: {human(step.norm)} | "
        f"lm_loss: {human(step.loss)} | lr: 0.0003 | model_tflops_per_gpu: {human(step.tflops)} | eta: 1 day, 0:01:00"
    )


def human(value: float) -> str:
    """Three digits and a suffix, as nanotron's own function prints a number."""
    value = float(f"{value:.3g}")
    magnitude = 0
    while abs(value) >= 1000:
        magnitude += 1
        value /= 1000.0
    return f"{value:f}".rstrip("0").rstrip(".") + ["", "K", "M", "G"][magnitude]


def moments(steps: list[Step]) -> list[datetime]:
    """When each step ended."""
    now, ends = datetime(2026, 1, 1), []
    for step in steps:
        now += timedelta(seconds=step.seconds)
        ends.append(now)
    return ends
