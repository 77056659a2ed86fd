"""nonloc train: one recipe into one run folder."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from nonloc._checks import check_choice, check_whole, shown
from nonloc.cli.durations import parse_duration
from nonloc.cli.output import Output, add_output_arguments
from nonloc.nn.options import StageOptions
from nonloc.outcomes import EXIT_DIVERGED, EXIT_DONE, Outcome
from nonloc_paper.commands.parser import CommandParser, add_budget, add_data_dir, add_device, add_optional
from nonloc_paper.data import NAMES
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.runs import Run
from nonloc_paper.suites.rows import MOST_THREADS
from nonloc_paper.training.recipe import Recipe

PARSER = CommandParser
SUMMARY = "train one network by one recipe; the same command continues it"
DESCRIPTION = """\
Train one network in one run folder, runs/<name of the recipe> unless --run says otherwise. The defaults are the
paper's recipe for CIFAR-10. Stop it at any time: the same command continues where it was, to the same result.
On CUDA a step is recorded once and then replayed as a whole, which gives the same result in a fraction of the time;
--captured false keeps to the plain loop. `nonloc reproduce` trains several networks side by side.
torchrun --nproc-per-node 4 -m -- nonloc train … shares each batch between four GPUs; the result differs by rounding.

A network is preresnetD[-keras|-basic|-public]/… or restorerC/…, followed by baseline, original-N@i or diffusive-N@i: N
nonlocal blocks after residual block i, counted from 1; @2,4,6 puts N after each of the three.

  nonloc train --network restorer16/diffusive-4@2 --data motifs --epochs 10 --steps_per_epoch 50 \\
      --optimizer adam --schedule onecycle --learning_rate 0.01 --batch_size 16    a minute on a CPU
  nonloc train --network preresnet20/original-4@2 --stage.init_std 0.06 --run runs/four
  nonloc train --precision bfloat16 --channels_last true    the fastest way on a recent NVIDIA GPU
  nonloc train --epochs 5 --print_config > recipe.yaml; nonloc train --config recipe.yaml --seed 1

Exit codes: 0 trained to its end (or --budget spent, saved); 3 the run diverged, which is kept as its result;
2 wrong usage; 4 corrupt data; 5 the folder is in use; 130 and 143 interrupted after saving."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", action="config", help="a YAML or JSON file of options")
    add_optional(parser, "--run", "the run folder; null is runs/<recipe's name>", metavar="DIR")
    add_device(parser)
    text = "replay every step as one CUDA graph; null is on CUDA, with the plain loop for what cannot be"
    add_optional(parser, "--captured", text, bool)
    text = "processor threads; null is torch's choice. On a busy machine 1 may be fastest; results differ by rounding"
    add_optional(parser, "--threads", text, int)
    add_data_dir(parser)
    add_budget(parser)
    add_output_arguments(parser)
    add_recipe_arguments(parser)


def add_recipe_arguments(parser: ArgumentParser) -> None:
    """Add one option for each field of Recipe, and --stage.<option> for those of its stage."""
    parser.add_class_arguments(Recipe, nested_key=None)
    texts = {one.name: one.metadata["help"] for one in fields(Recipe)}
    texts |= {f"stage.{one.name}": one.metadata["help"] for one in fields(StageOptions)}
    for action in parser._actions:
        if action.dest in texts:
            # A single % would be read as the beginning of argparse's own placeholders.
            action.help = texts[action.dest].replace("%", "%%")
    for group in parser._action_groups:
        if group.title and "StageOptions" in group.title:
            group.title = "the nonlocal stages; null is the stage's own default"
        elif group.title and "Recipe" in group.title:
            group.title = "the recipe"


def recipe_from(options: Namespace) -> Recipe:
    """Return the Recipe that the options of `add_recipe_arguments` describe."""
    values = {name: value for name, value in options.as_dict().items() if name in Recipe.__dataclass_fields__}
    stage = values["stage"]
    if not isinstance(stage, dict):
        raise ValueError(
            f"stage must hold options by name, such as {{hidden: 8}}, got {shown(stage)}; leave it out"
        )
    values["stage"] = {name: stage[name] for name in stage if name in StageOptions.__dataclass_fields__}
    return Recipe.from_dict(values)


def check_stage_options(options: Namespace, recipe: Recipe) -> None:
    """Refuse options of stages for a network without them; a config file, such as that of a run, may have them."""
    if NetworkSpec.parse(recipe.network).form is not None:
        return
    stage = recipe.stage.keywords().items()
    idle = [name for name, value in stage if options.of_files.get(f"stage.{name}") != value]
    if idle:
        backbone = recipe.network.partition("/")[0]
        raise ValueError(
            f"{recipe.network} has no nonlocal stages, so --stage.{', --stage.'.join(idle)} would do nothing; leave it "
            f"out, or name a --network with stages, such as {backbone}/diffusive-4@2"
        )


CALM_START = 0.01  # a deviation with which everything in the map trains


def advice(recipe: Recipe, outcome: Outcome) -> str:
    """What to try where nonlocal stages diverged, by what the trainability map shows."""
    network = NetworkSpec.parse(recipe.network)
    if outcome.ending != "diverged" or network.form is None:
        return ""
    ways, stage = [], recipe.stage
    if network.num_blocks > 1 and not stage.shares_affinity(network.form):
        ways.append("--stage.share_affinity true, which computes one affinity for all blocks")
    if stage.affinity in (None, "gaussian", "embedded_gaussian") and not stage.scaled:
        ways.append("--stage.scaled true, which divides the logits by √d")
    if stage.init not in (None, "normal", "zero") or (stage.init_std or 0) > CALM_START:
        ways.append(f"--stage.init normal --stage.init_std {CALM_START}")
    ways.append(f"--learning_rate below {recipe.learning_rate:g}")
    return f"\nTo try, in another --run: {'; '.join(ways)}. Which stages train: paper/pages/map.md."


def run(options: Namespace) -> int:
    output = Output(options)
    recipe = recipe_from(options)
    check_choice("data", recipe.data, NAMES)
    check_stage_options(options, recipe)
    budget = None if options.budget is None else parse_duration(options.budget)
    if options.threads is not None:
        check_whole("threads", options.threads, most=MOST_THREADS)
    folder = Run(options.run if options.run is not None else Path("runs") / recipe.name)

    import torch

    from nonloc_paper.training.fit import fit
    from nonloc_paper.training.machine import device_or_best
    from nonloc_paper.training.ranks import group_of_torchrun
    from nonloc_paper.training.step import slow_precision

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with group_of_torchrun() as is_first:
        output.is_quiet |= not is_first
        output.talk(f"{recipe.network} on {recipe.data}, seed {recipe.seed}, in {folder.path}")
        if slow := slow_precision(recipe, device_or_best(options.device)):
            output.talk(slow)
        outcome = fit(
            recipe,
            folder,
            data_dir=options.data_dir,
            device=options.device,
            captured=options.captured,
            progress=not output.is_quiet,
            throw=False,
            stop_after=budget,
        )
    if is_first:
        _print_result(output, recipe, folder, outcome)
    if outcome.ending == "diverged":
        return EXIT_DIVERGED
    signal = outcome.metrics.get("signal")
    return EXIT_DONE if signal is None else 128 + int(signal)


def _print_result(output: Output, recipe: Recipe, folder: Run, outcome: Outcome) -> None:
    result = folder.read_result() if folder.is_finished else None
    score = outcome.metrics.get("psnr", outcome.metrics.get("error"))
    unit = "dB PSNR" if recipe.task == "restoration" else "% error"
    ending = "" if score is None else f" Last score: {score:.2f} {unit}, epoch {outcome.metrics['epoch']}."
    output.result(
        f"{outcome.sentence}{ending}{advice(recipe, outcome)}\n{folder.path}",
        {"run": str(folder.path), "recipe": recipe.to_dict(), "outcome": outcome.to_dict(), "result": result},
    )
