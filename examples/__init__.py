"""Programs that train on real data, each one command: ``python -m examples.digits --device cpu``; see docs/examples.md."""
