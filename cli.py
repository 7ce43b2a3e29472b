"""Launcher for a checkout: ``python cli.py test --config configs/quickstart.yaml``."""

from probseg.cli import main

raise SystemExit(main())
