"""Why a run ended: written cases built from the templates of the libraries that print them."""

import pytest

from attune_lab.logs import KINDS, read_log
from attune_lab.logs.failures import SIGNS
from tests.attune_lab.logs.printed import Step, megatron

TAIL = "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 139.81 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 138.60 GiB memory in use. Of the "
    "allocated memory 135.00 GiB is allocated by PyTorch, and 1.40 GiB is reserved by PyTorch but unallocated. " + TAIL
)
OOM_20 = OOM.replace("torch.Out", "torch.cuda.Out").replace("capacity", "capacty").replace("Including non-PyTorch", "P")
OOM_1 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 139.81 GiB total capacity; 135.00 GiB "
    "already allocated; 1.20 GiB free; 136.40 GiB reserved in total by PyTorch)"
)
POOLS = OOM.replace("by PyTorch, and", "by PyTorch, with 60.00 GiB allocated in private pools (e.g., CUDA Graphs), and")
FRAGMENTED = OOM.replace("1.40 GiB is reserved", "21.00 GiB is reserved")
WATCHDOG = (
    "[rank5]:[E1101 00:00:01.123 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=88, OpType=_REDUCE_SCATTER_BASE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 "
    "milliseconds before timing out."
)


def steps(*numbers):
    return "".join(megatron(Step(n, 1.0, 9.0, 1.5, 1.0, 400.0)) + "\n" for n in numbers)


def traceback(*frames, error=OOM):
    printed = "".join(
        f'  File "/opt/{n}.py", line {n}, in {name}\n    {code}\n' for n, (name, code) in enumerate(frames)
    )
    return f"Traceback (most recent call last):\n{printed}{error}\n"


TRAIN = (("main", "pretrain()"), ("train_step", "losses = forward_backward_func(...)"))
FORWARD = (*TRAIN, ("forward_step", "model(tokens)"), ("forward", "self.mlp(x)"))
BACKWARD = (*TRAIN, ("backward_step", "custom_backward()"), ("backward", "ctx.recompute()"), ("forward", "self.mlp(x)"))
STEP = (("main", "pretrain()"), ("train_step", "optimizer.step()"), ("step", "self._adam()"))
CLOSURE = (("fit", "loop()"), ("step", "closure()"), ("training_step", "self(x)"), ("forward", "self.mlp(x)"))
LOGITS = (*TRAIN, ("forward", "self._postprocess()"), ("vocab_parallel_cross_entropy", "exp_logits = logits.exp()"))
BUILD = (("main", "pretrain()"), ("setup_model_and_optimizer", "get_model()"), ("__init__", "torch.empty(shape)"))
CAPTURE = (*TRAIN, ("create_cudagraphs", "with torch.cuda.graph(graph):"), ("forward", "self.mlp(x)"))

CASES = {
    "forward": (steps(1, 2) + traceback(*FORWARD), "oom_forward"),
    "backward, recomputing": (steps(1, 2) + traceback(*BACKWARD), "oom_backward"),
    "optimizer": (traceback(*STEP), "oom_optimizer_step"),
    "forward within Lightning's step": (steps(1, 2) + traceback(*CLOSURE), "oom_forward"),
    "logits": (steps(1, 2) + traceback(*LOGITS), "oom_last_stage"),
    "building": (traceback(*BUILD), "oom_model"),
    "capture": (steps(1, 2) + traceback(*CAPTURE), "oom_graph_pools"),
    "private pools": (steps(1, 2) + traceback(*FORWARD, error=POOLS), "oom_graph_pools"),
    "fragmentation": (steps(1, 2) + traceback(*FORWARD, error=FRAGMENTED), "oom_fragmentation"),
    "nothing printed above, no step": ("starting\n" + OOM + "\n", "oom_first_step"),
    "nothing printed above, steps": (steps(1, 2, 3) + OOM + "\n", "oom_late"),
    "forward of step 2: moments are resident": (steps(1) + traceback(*FORWARD), "oom_optimizer_step"),
    "line of every tenth step": (steps(10) + traceback(*FORWARD), "oom_forward"),
    "torch 2.1": (steps(1, 2) + traceback(*FORWARD, error=OOM_20), "oom_forward"),
    "torch 1": (steps(1, 2) + traceback(*BACKWARD, error=OOM_1), "oom_backward"),
    "outside the pool": (steps(1) + "RuntimeError: CUDA error: out of memory\n", "oom_cuda"),
    "cuBLAS": (steps(1) + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling\n", "oom_cuda"),
    "NCCL": ("node1:12:90 [0] misc/alloc.h:10 NCCL WARN Cuda failure 'out of memory'\n", "oom_nccl"),
    "NCCL calloc": ("node1:12:90 [0] NCCL WARN Failed to CUDA calloc 10485760 bytes\n", "oom_nccl"),
    "DeepEP": ("RuntimeError: DeepEP error: CUDA out of memory in nvshmem heap\n", "oom_nccl"),
    "killed": (steps(1) + "Killed\n", "oom_host"),
    "killed under bash": (steps(1) + "train.sh: line 12: 12345 Killed                  python train.py\n", "oom_host"),
    "loader": (
        steps(1) + "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. \n",
        "oom_host",
    ),
    "shared memory": (
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible\n",
        "oom_host",
    ),
    "Slurm's killer": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n",
        "oom_host",
    ),
    "srun": (steps(1) + "srun: error: node1: task 3: Out Of Memory\n", "oom_host"),
    "exit 137": (steps(1) + "Job failed with exit code 137\n", "oom_host"),
    "elastic": (steps(1) + "  exitcode  : -9 (pid: 12345)\n", "oom_host"),
    "watchdog": (steps(1, 2) + WATCHDOG + "\n", "hang"),
    "watchdog of a peer of the one out of memory": (steps(1, 2) + traceback(*FORWARD) + WATCHDOG + "\n", "oom_forward"),
    "the same, printed late": (steps(1, 2) + WATCHDOG + "\n" + traceback(*FORWARD), "oom_forward"),
    "sizes that are garbage": (
        steps(1) + WATCHDOG + "\nRuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.\n",
        "hang",
    ),
    "DeepEP's time-out": (steps(1) + "DeepEP error: timeout (dispatch CPU)\n", "hang"),
    "DeepEP's check": ("DeepEP timeout check failed: rank = 3, thread = 7, value = 0\n", "hang"),
    "NaN in a bucket": (
        "Unexpected result nan (message='found NaN in local grad norm for bucket #0 in backward pass')\n",
        "nan",
    ),
    "loss scale": ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.\n", "nan"),
    "Xid": (steps(1) + "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n", "hardware"),
    "Xid after the time-out it caused": (
        steps(1) + WATCHDOG + "\nNVRM: Xid (PCI:0000:3b:00): 94, pid=1234, Contained memory error\n",
        "hardware",
    ),
    "ECC": ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "hardware"),
    "node": ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE LOG ***\n",
             "node_failure"),
    "time limit": (
        steps(1) + "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
        "time_limit",
    ),
    "preempted": ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***\n",
                  "preempted"),
    "cancelled": ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n", "cancelled"),
    "assertion, then the time limit of the others": (
        traceback(("validate_args", "assert x"), error="AssertionError: world size is not divisible")
        + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
        "launch_error",
    ),
    "argument": ("train.py: error: unrecognized arguments: --fast\n", "launch_error"),
    "exception after steps": (steps(1) + traceback(("f", "x"), error="ValueError: odd"), "crash"),
    "segmentation fault": (steps(1) + "Fatal Python error: Segmentation fault\n", "crash"),
    "module": (traceback(("f", "import x"), error="ModuleNotFoundError: No module named 'deep_ep'"), "backend_missing"),
    "symbol": ("ImportError: /opt/te.so: undefined symbol: _ZN3c10\n", "backend_missing"),
    "library": ("OSError: libcudnn.so.9: cannot open shared object file\n", "backend_missing"),
    "data": (traceback(("f", "x"), error="FileNotFoundError: No such file: '/data/a.idx'"), "data_error"),
    "loader's exception": ("RuntimeError: Caught IndexError in DataLoader worker process 0.\n", "data_error"),
    "broken connection": ("torch.distributed.DistBackendError: NCCL error: ncclRemoteError: failed\n", "network"),
    "NCCL's reason on a later line": (
        steps(1)
        + traceback(("f", "x"), error="torch.distributed.DistBackendError: NCCL error: unhandled cuda error")
        + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes\n",
        "oom_nccl",
    ),
    "a peer of the one with an assertion": (
        traceback(("f", "x"), error="RuntimeError: store->get('0') got error: Connection reset by peer")
        + traceback(("f", "x"), error="AssertionError: sequence length"),
        "launch_error",
    ),
    "terminated, then why": (
        steps(1)
        + traceback(("f", "x"), error="torch.distributed.elastic.SignalException: Process 7 got signal: 15")
        + "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***\n",
        "preempted",
    ),
    "hanging until the time limit": (
        steps(1) + WATCHDOG + "\nslurmstepd: error: *** JOB 7 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***\n",
        "hang",
    ),
    "summary of the launcher, then the error": (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n" + traceback(*BACKWARD),
        "oom_backward",
    ),
    "router, whose logits are small": (
        steps(1, 2) + traceback(*TRAIN, ("forward", "logits = self.gating(x)"), ("gating", "torch.mm(x, w)")),
        "oom_forward",
    ),
    "a little lies loose in every pool": (
        steps(1, 2) + traceback(*FORWARD, error=OOM.replace("2.00 GiB", "20.00 MiB").replace("1.40 GiB", "900.00 MiB")),
        "oom_forward",
    ),
    "driver": (steps(1) + "RuntimeError: CUDA driver error: out of memory\n", "oom_cuda"),
    "Ctrl-C": (steps(1) + traceback(("f", "x"), error="KeyboardInterrupt"), "cancelled"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_first_cause_is_found(case):
    text, kind = CASES[case]
    failure = read_log(text).failure
    assert failure is not None
    assert failure.kind == kind
    assert failure.evidence
    assert text.splitlines()[failure.line - 1].split()[-1] in text


@pytest.mark.parametrize("case", CASES)
def test_interleaved_ranks_do_not_hide_it(case):
    """Every line once more by another rank that is a little behind, as in the output of srun -l."""
    text, kind = CASES[case]
    printed = text.splitlines()
    mixed = "".join(f"0: {a}\n1: {b}\n" for a, b in zip([*printed, "x"], ["x", *printed], strict=True))
    assert read_log(mixed).failure.kind == kind


@pytest.mark.parametrize(
    "prefix", ["[rank3]:[rank3]: ", "2026-01-01T00:00:00.123456Z stderr F ", "3: [default0]:[rank3]: "]
)
def test_what_a_launcher_puts_before_every_line_does_not_hide_a_traceback(prefix):
    text = steps(1, 2) + "".join(prefix + line + "\n" for line in traceback(*BACKWARD).splitlines())
    assert read_log(text).failure.kind == "oom_backward"
    text = "".join(prefix + line + "\n" for line in traceback(*BUILD, error="ValueError: odd").splitlines())
    assert read_log(text).failure.kind == "launch_error"


def test_every_kind_is_found_in_some_case_and_every_sign_has_a_kind():
    assert {kind for _, kind in CASES.values()} == set(KINDS)
    assert {sign.kind for sign in SIGNS} <= set(KINDS)


@pytest.mark.parametrize("message", [OOM, OOM_20, OOM_1])
def test_the_figures_of_an_out_of_memory_message(message):
    said = {name: value / 2**30 for name, value in read_log(message + "\n").failure.memory_bytes.items()}
    expected = {"requested": 2.0, "capacity": 139.81, "free": 1.2, "allocated": 135.0, "unallocated": 1.4}
    for name, value in expected.items():
        assert said[name] == pytest.approx(value, abs=1e-9)


def test_training_that_goes_on_has_not_ended_there():
    log = read_log(steps(1, 2) + traceback(*FORWARD) + steps(2, 3, 4))
    assert log.failure is None
    assert any("oom_forward" in remark for remark in log.remarks)


def test_a_step_on_its_way_does_not_hide_the_failure_of_another_rank():
    assert read_log(steps(1, 2) + traceback(*FORWARD) + steps(3)).failure.kind == "oom_forward"


def test_what_breaks_after_the_end_is_no_failure():
    text = steps(1, 2) + "[after training is done] datetime: 2026-01-01 00:00:00\nFatal Python error: teardown\n"
    log = read_log(text)
    assert log.finished
    assert log.failure is None


def test_a_loss_that_stays_nan_has_diverged_and_one_that_recovers_has_not():
    nan = steps(3, 4).replace("9.000000E+00", "nan", 2)
    log = read_log(steps(1, 2) + nan)
    assert (log.failure.kind, log.failure.line) == ("nan", 3)
    assert read_log(steps(1, 2) + nan + steps(5)).failure is None


@pytest.mark.parametrize(
    "harmless",
    [
        "WARNING: transformer_engine is not installed, falling back",
        "NVRM: Xid (PCI:0000:3b:00): 45, pid=1234, Ch 00000010",
        "   exit_on_missing_checkpoint ...................... False",
        "  timeout_minutes ................................. 10",
        "Killed time while waiting for the data: 12 s",
    ],
)
def test_harmless_lines_are_no_failure(harmless):
    assert read_log(steps(1) + harmless + "\n").failure is None


def test_evidence_is_fit_to_print():
    log = read_log(
        "\x1b[31mtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. \x07\u202e" + "x" * 9999 + "\n"
    )
    assert log.failure.evidence.isprintable()
    assert len(log.failure.evidence) < 400
