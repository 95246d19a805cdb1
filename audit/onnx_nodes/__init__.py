"""The node tests of the installed onnx package, run on tlrt: a table of operators, an interpreter of graphs, a report."""
