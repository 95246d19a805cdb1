"""tlspec: what each operation and its gradient mean, in float64 NumPy.

``tlspec.registry`` holds one row per operation and ``tlspec.ops`` the references; ``tlspec.signature`` is the grammar of
signatures, ``tlspec.validation`` what a sound row is. ``tlspec.bounds`` has the float32 error bounds, ``tlspec.cases`` the drawn
test cases, ``tlspec.laws`` the algebraic laws. ``tlspec.entries`` gives the entry points of the C ABI that the rows determine,
``tlspec.declarations`` the hash that a library is known by.
"""
