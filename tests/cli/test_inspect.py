"""`purine check`, `purine show`, help and version."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import purine as pu
from purine.cli.commands import COMMANDS, load
from purine.compile.rewrites import REWRITES
from purine.graph import load_yaml, save_yaml, to_text
from purine.job.names import PASSES
from purine.lowering import LOWERING
from purine.machine.effects import EFFECTS
from purine.recipe import RECIPE
from tests.command import call
from tests.forked import python


def test_version_and_help() -> None:
    assert call("--version").out.startswith(f"purine {pu.__version__} ")
    looks = ("plot", "runs", "compare", "infer", "export")
    for command in ("train", "test", "check", "show", "status", "trace", "replay", *looks):
        shown = call(command, "--help")
        assert shown.code == 0
        assert f"purine {command}" in shown.out
    options = " ".join(call("train", "--help").out.split())
    for word in ("--weight-decay", "cuda:0 is", "cuda:0-3"):
        assert word in options
    for command in ("train", "show"):
        text = " ".join(call(command, "--help").out.split())
        assert all(f"{net}," in text or f"{net})" in text for net in pu.zoo.NETS)


def test_usage_errors_exit_with_2() -> None:
    for arguments in (["train", "--batch", "many"], ["train", "--nett", "mlp"], ["fly"]):
        assert call(*arguments).code == 2


def test_other_exceptions_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: str) -> None:
        raise ZeroDivisionError(spec)

    monkeypatch.setattr("purine.job.plan.open_data", broken)
    with pytest.raises(ZeroDivisionError):
        call("train", "--net", "mlp")


@pytest.mark.parametrize("command", ["show --net mlp", "train --net mlp --dry-run", "--help"])
def test_output_that_cannot_be_written_is_told(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    with open(tmp_path / "file", "rb") as unwritable:
        called = python("-m", "purine", *command.split(), stdout=unwritable.fileno())
    assert called.returncode == 2
    assert called.stderr.startswith("error: cannot write the output\n")
    assert "found: Bad file descriptor" in called.stderr
    assert "Traceback" not in called.stderr


@pytest.mark.parametrize("command", ["show --net mlp", "train --net mlp --dry-run"])
def test_a_reader_that_has_gone_is_no_error(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    called = python("-m", "purine", *command.split(), stdout=write)
    os.close(write)
    assert (called.returncode, called.stderr) == (1, "")


@pytest.mark.parametrize(
    ("module", "command", "code"),
    [("torch", "show --kinds", 130), ("typer", "--version", -signal.SIGINT)],
)
def test_an_interrupt_while_a_library_is_imported_is_quiet(
    module: str, command: str, code: int, tmp_path: Path
) -> None:
    interrupted = "import signal; signal.raise_signal(signal.SIGINT)"
    (tmp_path / f"{module}.py").write_text(interrupted)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    called = subprocess.run(
        [sys.executable, "-m", "purine", *command.split()],
        env={**os.environ, "PYTHONPATH": paths},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # not so in background
        capture_output=True,
        text=True,
        check=False,
    )
    assert (called.returncode, called.stderr) == (code, "")


def test_check_counts_or_lists_everything(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    net = pu.zoo.mlp(4)
    save_yaml(net, good)
    bad.write_text(
        "- {type: blob, name: x, size: [2, 3]}\n"
        "- {type: op, op_type: Relu, name: a, inputs: [q], outputs: [y]}\n"
        "- {type: op, op_type: Relu, name: b, inputs: [p], outputs: [y]}\n"
    )
    called = call("check", good, bad)
    assert called.code == 2
    assert called.out == f"{good}: ok ({len(net.ops)} ops, {len(net.blobs)} blobs)\n"
    assert called.err.count("error: ") == 3
    assert f"{bad}:2" in called.err
    assert "ops 'a' and 'b' both write blob 'y'" in called.err


def test_check_lists_every_entry_that_cannot_be_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "- {typ: blob, name: x, size: [2, 3]}\n"
        "- {type: blob, nam: y, size: [2, 3]}\n"
        "- {type: op, op_type: Relu, name: a, inputs: [x], outputs: [y]}\n"
        "- {type: op, op_type: Relu, name: b, inputs: x, outputs: [z]}\n"
        "- {type: op, op_type: Relu, name: c, inputs: [x, outputs: [z]}\n"
    )
    called = call("check", bad)
    assert called.code == 2
    heads = [line for line in called.err.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[2] for line in heads] == ["1", "2", "4", "5"]


def test_the_table_adds_up() -> None:
    shown = call("show", "--net", "lenet", "--batch", "2")
    assert shown.code == 0
    conv = next(line.split() for line in shown.out.splitlines() if line.startswith("conv1 "))
    assert conv[:4] == ["conv1", "Conv", "2x20x24x24", "520"]
    assert float(conv[4]) == pytest.approx(2 * 2 * 20 * 24 * 24 * 25 / 1e6, abs=0.01)
    assert "431,080" in shown.out.splitlines()[-1]


def test_show_builds_a_net_for_images_of_a_size() -> None:
    shown = call("show", "--net", "lenet", "--batch", "2", "--image", "3,32,32")
    assert shown.code == 0
    assert "2x3x32x32, 2" in shown.out
    assert "2x20x28x28" in shown.out


def test_show_says_what_it_cannot_write(tmp_path: Path) -> None:
    called = call("show", "--net", "mlp", "--output", tmp_path / "none" / "net.txt")
    assert called.code == 2
    assert "cannot write the file" in called.err
    assert "choose another path" in called.err


def test_show_writes_every_format(tmp_path: Path) -> None:
    net = pu.zoo.mlp(4)
    file = tmp_path / "net.yaml"
    save_yaml(net, file)
    assert call("show", file, "--format", "text").out == to_text(pu.check(net)) + "\n"
    assert call("show", file, "--format", "dot").out.startswith("digraph")
    again = tmp_path / "again.yaml"
    assert call("show", file, "--format", "yaml", "-o", again).code == 0
    assert load_yaml(again) == pu.check(net)
    assert "MomentumUpdate" in call("show", file, "--step").out


def test_show_prints_a_step_on_several_devices_and_every_stage_of_its_lowering() -> None:
    step = ("show", "--net", "mlp", "--batch", "4", "--step", "--format", "text", "--devices")
    for scheme in ((), ("--parallel", "pipeline=2,micro=2")):
        assert "Copy" in call(*step, "cpu:0-1", *scheme).out
        stages = {name: call(*step, "cpu:0-1", *scheme, "--after", name) for name in PASSES}
        assert all(stage.code == 0 for stage in stages.values())
        assert "Copy" not in stages["aliases"].out
        assert "Segment(" not in stages["packing"].out
        assert "\nsegment " in stages["segments"].out
        assert call(*step, "cpu:0-1", *scheme, "--lowered").out == stages["segments"].out


def test_the_table_of_a_lowered_step_has_the_work_of_its_segments() -> None:
    step = ("show", "--net", "mlp", "--batch", "4", "--step")
    whole, lowered = (call(*step, *more).out.splitlines() for more in ((), ("--lowered",)))
    assert len(lowered) < len(whole)
    assert lowered[-1].split()[-2] == whole[-1].split()[-2]


def test_show_refuses_passes_that_there_are_not_and_devices_without_a_step() -> None:
    refused = call("show", "--net", "mlp", "--step", "--after", "alias")
    assert refused.code == 2
    assert "one of hosts, aliases, collectives, shares, products, packing, segments" in refused.err
    assert "did you mean 'aliases'?" in refused.err
    refused = call("show", "--net", "mlp", "--devices", "cpu:0-1")
    assert refused.code == 2
    assert "--devices is given without --step" in refused.err


def test_show_lists_kinds() -> None:
    shown = call("show", "--kinds").out
    assert "\nConv(x, weight, bias?)\n" in shown
    assert "\nAdamUpdate(" in shown
    assert "    top_k: a whole number (default 1)\n" in shown


@pytest.mark.multiprocess
def test_an_error_is_all_that_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(
        "- {type: blob, name: x, size: [2, 3, 8, 8]}\n"
        "- {type: op, op_type: Pool, name: p, inputs: [x], outputs: [y], kernel: 20}\n"
    )
    done = python("-m", "purine", "check", file)
    assert done.returncode == 2
    assert done.stdout == ""
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        *("error", "  expected", "  found", "  to do")
    ]


def test_blocks_add_up_to_the_same() -> None:
    whole = call("show", "--net", "resnet50", "--batch", "1").out.splitlines()
    for depth in ("1", "2"):
        folded = call(
            "show", "--net", "resnet50", "--batch", "1", "--depth", depth
        ).out.splitlines()
        assert folded[-1].split() == whole[-1].split()
        assert len(folded) < len(whole)
    assert any(line.startswith("stage4/block3 ") and "4,462,592" in line for line in folded)


def test_blocks_are_drawn_but_not_saved() -> None:
    shown = call("show", "--net", "vgg16", "--batch", "1", "--depth", "1", "--format", "dot")
    assert '"op:block5"' in shown.out
    assert "block5/conv1" not in shown.out
    refused = call("show", "--net", "vgg16", "--depth", "1", "--format", "yaml")
    assert refused.code == 2
    assert "blocks cannot be written as YAML" in refused.err


def test_show_lists_what_is_done_to_a_graph_and_in_which_order() -> None:
    for option, names in {
        "--stages": [stage.name for stage in RECIPE],
        "--passes": [item.name for item in LOWERING],
        "--rewrites": [rewrite.name for rewrite in REWRITES],
        "--effects": [effect.name for effect in EFFECTS],
    }.items():
        lines = call("show", option).out.splitlines()
        assert [line.split()[0] for line in lines] == names
        assert all(len(line.split()) > 3 for line in lines), "a reason for each"


def test_the_list_of_commands_says_what_their_help_says() -> None:
    listed = " ".join(call("--help").out.split())
    for name, (_, summary) in COMMANDS.items():
        text = " ".join(load(name).help.split())
        assert text.startswith(summary)
        assert f" {name} {summary[:25]}" in listed


def test_help_imports_no_command() -> None:
    script = (
        "import sys; sys.argv = ['purine', '--help']; from purine.cli import main\n"
        "try: main()\n"
        "finally: print(*sorted(sys.modules), file=sys.stderr)"
    )
    called = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    modules = called.stderr.split()
    assert "purine.cli.commands" in modules
    assert "purine.cli.train" not in modules
    assert "torch" not in modules


def test_workers_on_several_hosts_are_not_shown_lowered() -> None:
    words = ("--net", "mlp", "--step", "--devices", "host0-1:cpu:0", "--parallel")
    shown = call("show", *words, "asynchronous=easgd")
    assert shown.code == 0, shown.err
    refused = call("show", *words, "asynchronous=easgd", "--lowered")
    assert (refused.code, "lowered one by one" in refused.err) == (2, True)
