"""`python -m probseg`: the command line."""

from probseg.cli import main

raise SystemExit(main())
