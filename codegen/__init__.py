"""The generator: from the rows of the registry to the C ABI and its Python functions. Nothing imports it at run time."""
