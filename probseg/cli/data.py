"""The verb data. Each of its verbs is a file of its own, imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from probseg.cli.arguments import Parser, add_verbs
from probseg.errors import USER_ERRORS, UsageError
from probseg.kinds import Offers

if TYPE_CHECKING:
    from probseg.cli.arguments import AddVerb

EXAMPLES = """\
examples:
  probseg data list
  probseg data fetch GrabCut
  probseg data fetch DAVIS585 --source ~/Downloads/DAVIS585.zip
  probseg data check GrabCut
  probseg data check my_folder --json problems.json
  probseg data convert annotations.json masks --from coco --to png
  probseg data check SBD --split train --against PascalVOC
"""

VERBS: Mapping[str, AddVerb] = Offers(
    "data_verb",
    {
        "check": "probseg.cli.data_check.add_verb",
        "fetch": "probseg.cli.data_fetch.add_verb",
        "list": "probseg.cli.data_list.add_verb",
    },
)
"""The function that adds each verb to the parser."""


def run(arguments: Sequence[str]) -> None:
    """Run `probseg data`.

    Args:
        arguments: Command-line arguments after `data`.

    Raises:
        UsageError: If an option cannot be used, or a file cannot be written.
        UnknownNameError: If there is no such data set.
        DatasetNotFoundError: If a data set is not where it was looked for.
        DownloadError: If a download fails.
        ChecksumError: If an archive is not the one that is expected.
        DataError: If an archive or a photograph cannot be used.
        SystemExit: With status 1 if problems or shared photographs were found.
    """
    parser = Parser(
        prog="probseg data",
        description="Published data sets, and your own folders.",
        epilog=EXAMPLES,
    )
    add_verbs(parser, VERBS, arguments)
    options = parser.parse_args(list(arguments))
    try:
        options.action(options)
    except USER_ERRORS:
        raise
    except OSError as error:  # permissions, full disks
        raise UsageError(str(error)) from error
