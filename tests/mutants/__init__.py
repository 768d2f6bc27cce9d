"""Changes that break promises, made by hand: who notices them? `make mutants`; docs/internals/simulator.md."""
