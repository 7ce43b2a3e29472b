"""The short help of fit, validate and test, which needs no imports."""

from __future__ import annotations

from collections.abc import Sequence

ALL = "--help.all"  # the option for the whole help, which the parser of a verb prints

EXAMPLES = {
    "fit": "probseg fit --config configs/experiment/folder.yaml --data.root my_folder",
    "validate": "probseg validate --config RUN/config.yaml --ckpt_path CHECKPOINT",
    "test": "probseg test --config configs/quickstart.yaml",
}

_PURPOSE = {
    "fit": "Trains a model. A run's folder holds config.yaml, checkpoints and logs.",
    "validate": "Evaluates a model on the validation data of a configuration, with few clicks.",
    "test": "Evaluates a model on the test data of a configuration, and writes a report.",
}

_COMMON = """\
run:
  -c, --config FILE            configuration; several are merged, options win over them. The
                               classes that it names are imported: of your own, or of people
                               whose code you would run
  --ckpt_path FILE             checkpoint; last: the newest of the runs of this configuration
  --seed_everything N          seed of weights, data and clicks
  --trainer.accelerator NAME   auto, cpu, gpu, mps
  --trainer.devices N          number of devices, or processes on a CPU
  --trainer.precision NAME     32-true, bf16-mixed, 16-mixed
  --trainer.logger.save_dir DIR, --trainer.logger.name NAME
                               the run's folder is DIR/NAME/version_N
  --trainer.logger WandbLogger
                               Weights & Biases instead of TensorBoard
"""

_MODEL = """\
model:
  --model.model.name NAME      network of the zoo: probseg zoo list
  --model.model.pretrained {true,false}
                               begin with its weights, or from scratch
"""

_TRAINING = """\
training:
  --minutes N                  length in minutes, or
  --trainer.max_epochs N       in epochs
  --trainer.max_time DD:HH:MM:SS
                               stop after this time
  --model.optimizer.lr RATE    learning rate
  --model.lr_scheduler.decay_epochs N
                               epochs in which the rate falls
"""

_DATA = """\
data:
  --data.root DIR              folder with images/ and masks/
  --data.batch_size N          crops in a batch
  --data.crop_size N           side of a crop, in pixels
  --data.num_workers N         processes that read photographs
"""

_TESTING = """\
data:
  --folder DIR                 all objects of a folder with images/ and masks/
  --data.test CLASS            test set: GrabCut, Berkeley, SBD, ImageMaskFolder, ...
  --data.test.root DIR         its folder
"""

_VALIDATING = """\
data:
  --folder DIR                 all objects of a folder with images/ and masks/
  --data.root DIR              the part of such a folder that its trainings hold out
  --data.val_objects N         most objects that are used
"""

_EVALUATION = """\
evaluation:
  --evaluation.protocols [A,B]
                               gabbur2021, ritm, ritm_zoom, human, scribbles, ...
  --evaluation.max_clicks N    clicks on each object
  --evaluation.trials N        repetitions of a protocol with noise
  --evaluation.batch_size N    objects answered together
  --semantic_evaluation.flip {true,false}
                               evaluation of semantic segmentation, which has other options
"""

_END = f"""\
more:
  {ALL}                   every option, with types and defaults
  --data.help CLASS, --model.help CLASS
                               options of a class
  --print_config               all settings of the run as YAML, without running it
"""

_PARTS = {
    "fit": (_COMMON, _MODEL, _TRAINING, _DATA, _EVALUATION),
    "validate": (_COMMON, _MODEL, _VALIDATING, _EVALUATION),
    "test": (_COMMON, _MODEL, _TESTING, _EVALUATION),
}


def short_help(arguments: Sequence[str]) -> str | None:
    """Return the help that a verb and its options ask for, or None; `ALL` asks for another."""
    if arguments[0] not in EXAMPLES or not {"-h", "--help"} & set(arguments[1:]):
        return None
    verb = arguments[0]
    usage = f"usage: probseg {verb} --config FILE [options]\n"
    if verb != "fit":
        usage += f"       probseg {verb} RUN --folder DIR [options]  (only the network of RUN)\n"
    head = f"{usage}\n{_PURPOSE[verb]}\n"
    return "\n".join([head, *_PARTS[verb], _END, f"example: {EXAMPLES[verb]}\n"])
