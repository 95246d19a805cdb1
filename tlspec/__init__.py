"""tlspec: what each operation and its gradient mean, in float64 NumPy.

``tlspec.registry`` holds one row per operation, ``tlspec.ops`` the references, ``tlspec.bounds`` the float32 error bounds,
``tlspec.cases`` the drawn test cases, ``tlspec.laws`` the algebraic laws, ``tlspec.entries`` the entry points of the C ABI that
the rows determine.
"""
