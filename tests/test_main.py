"""The command line: what it takes, what it refuses, which config it loads."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jacreg_train.main import main, parse

PROGRAM = "jacreg-train"


def parsed(*flags):
    return parse([PROGRAM, *flags])


def refusal(capsys, *flags) -> str:
    """The one line on standard error of a command line that is refused."""
    assert main([PROGRAM, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jacreg-train: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working directory outside the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--config.modle.name=cnn"], ["--config.modle.name", "no such field", "did you mean model?"]),
        (["--config.seed.x=1"], ["--config.seed.x", "no such field"]),
        (["--config.batch_size=many"], ["--config.batch_size=many"]),
        (["--config.batch_size=1.5"], ["--config.batch_size=1.5"]),
        (["--config.optimizer.nesterov=perhaps"], ["--config.optimizer.nesterov=perhaps"]),
        (["--config.model.cnn=3"], ["--config.model.cnn=3"]),
        (["--config.model.name=nn"], ["config.model.name = 'nn'", "cnn, resnet18, haiku_cnn"]),
        (["--config.jacobian.estimator.name=layer"], ["config.jacobian.estimator.name", "did you mean layerwise?"]),
        (["--config.jacobian.estimator.num_probes=2"], ["num_probes=2", "example_chunk, output_chunk"]),
        (["--config.jacobian.context.name=digits"], ["config.jacobian.context.name = 'digits'", "points"]),
        (["--config.batch_size=None"], ["config.batch_size = None", "int"]),
        (["--config.batch_size=-1"], ["config.batch_size = -1", "[1, inf)"]),
        (["--config.model.resnet18.width=2"], ["config.model.resnet18.width", "config.model.name = 'cnn'"]),
        (["--config.model.cnn.norm=layer"], ["config.model.cnn", "none, group, batch"]),
        (["--config.dataset.name=nosuchset", "--config.dataset.data_dir=."], ["nosuchset", "run: "]),
        (["--config=nothing.py"], ["--config=nothing.py", "configs/digits_cnn.py"]),
        (["--config=nothing.json"], ["--config=nothing.json"]),
        (["--config="], ["--config has no value"]),
        (["--workdir="], ["--workdir has no value"]),
        (["--nosuchflag=1"], ["nosuchflag"]),
        (["word"], ["'word' is no flag"]),
        (["--flagfile=nothing"], ["nothing"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, flags, expected):
    message = refusal(capsys, *flags, "--config.compilation_cache=off")
    for part in expected:
        assert part in message


def test_a_mistake_gives_no_traceback_from_the_shell():
    done = subprocess.run(
        [sys.executable, "-m", "jacreg_train.main", "--config.model.name=nn"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not Path("runs").exists()


def test_help(capsys):
    assert main([PROGRAM, "--help"]) == 0
    assert "Exit codes" in capsys.readouterr().out


def test_flags_of_every_type_are_taken():
    config, overridden, workdir = parsed(
        "--config.model.cnn.widths=(8, 9)",
        "--config.model.cnn.strides=()",
        "--config.model.cnn.dense_width=None",
        "--config.wandb.tags=a",
        "--config.wandb.tags=b",
        "--config.optimizer.clip_norm=None",
        "--config.optimizer.weight_decay=1e-3",
        "--config.optimizer.nesterov=false",
        "--config.jacobian.estimator.example_chunk",
        "3",
        "--noconfig.log.gradient_norms",
        "--config.dataset.data_dir=None",
    )
    assert config.model.cnn.widths == (8, 9)
    assert config.model.cnn.strides == ()
    assert config.model.cnn.dense_width is None
    assert config.wandb.tags == ("a", "b")
    assert config.optimizer.clip_norm is None
    assert config.optimizer.weight_decay == 1e-3
    assert config.optimizer.nesterov is False
    assert config.jacobian.estimator.example_chunk == 3
    assert config.log.gradient_norms is False
    assert config.dataset.data_dir is None
    assert "optimizer.clip_norm" in overridden
    assert "seed" not in overridden
    assert workdir == Path("runs/digits_cnn")


def test_a_flag_file_is_taken(tmp_path):
    (tmp_path / "flags").write_text("--config=configs/synthetic.py\n--config.seed=5\n--workdir=here\n")
    config, _, workdir = parsed(f"--flagfile={tmp_path / 'flags'}", "--config.batch_size=2")
    assert (config.dataset.name, config.seed, config.batch_size) == ("synthetic", 5, 2)
    assert workdir == Path("here")


def test_overrides_may_come_before_the_config():
    config, _, workdir = parsed("--config.seed=5", "--config", "configs/synthetic.py")
    assert (config.dataset.name, config.seed) == ("synthetic", 5)
    assert workdir == Path("runs/synthetic")


def test_a_config_of_ones_own_comes_before_the_packaged_one_of_that_name(tmp_path):
    assert parsed("--config=configs/synthetic.py")[0].dataset.name == "synthetic"
    assert parsed("--config=synthetic.py")[0].dataset.name == "synthetic"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "synthetic.py").write_text(
        "from configs import default\n\ndef get_config():\n    config = default.get_config()\n"
        "    config.seed = 77\n    return config\n"
    )
    assert parsed("--config=configs/synthetic.py")[0].seed == 77


TINY = [
    "--config=configs/synthetic.py",
    "--config.dataset.synthetic.image_shape=(4, 4, 1)",
    "--config.dataset.synthetic.num_examples=8",
    "--config.model.cnn.widths=(2,)",
    "--config.model.cnn.strides=(2,)",
    "--config.model.cnn.dense_width=None",
    "--config.batch_size=4",
    "--config.log.penalty_share_rounds=0",
    "--config.compilation_cache=off",
    "--config.num_steps=2",
]


def test_a_recorded_config_runs_again_to_the_same_end(tmp_path):
    assert main([PROGRAM, *TINY, "--workdir=runs/a"]) == 0
    assert main([PROGRAM, "--config=runs/a/config.json"]) == 0
    assert parsed("--config=runs/a/config.json")[2] == Path("runs/a_again")
    first, again = (tmp_path / "runs" / name for name in ("a", "a_again"))
    assert json.loads((first / "config.json").read_text()) == json.loads((again / "config.json").read_text())
    losses = [
        json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])["train/loss"] for workdir in (first, again)
    ]
    assert losses[0] == losses[1]


def test_another_config_for_a_workdir_is_refused_with_the_fields(capsys):
    assert main([PROGRAM, *TINY, "--workdir=runs/a"]) == 0
    capsys.readouterr()
    message = refusal(capsys, *TINY, "--workdir=runs/a", "--config.seed=4", "--config.jacobian.weight=1.0")
    assert "seed: 0 there, 4 here" in message
    assert "jacobian.weight: 0.0001 there, 1.0 here" in message


def test_sigterm_ends_a_run_in_order_with_exit_code_143(tmp_path):
    endless = [*TINY, "--config.num_steps=1000000", "--config.compilation_cache=auto"]
    command = [sys.executable, "-m", "jacreg_train.main", *endless, "--workdir=runs/a"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "compiling the training step\n"
    assert process.stdout.readline().startswith("step 10/1000000")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    told = process.stderr.read()
    assert "jacreg-train: SIGTERM: stopping after this step" in told
    assert "stopped by SIGTERM after step" in told
    saved = [path.name for path in (tmp_path / "runs/a/checkpoints").iterdir()]
    assert len(saved) >= 1
    assert any((tmp_path / "runs/.jax_cache").iterdir())
