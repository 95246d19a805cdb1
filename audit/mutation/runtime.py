"""Defects of entry points, memory, the specification, the tape, the session and what trains with them.

The columns are those of :mod:`audit.mutation.kernels`."""

from __future__ import annotations

from audit.mutation.defect import defects

#: the tests of buffers and contexts, and the hostile calls
CORE = (
    "tests/runtime/test_buffer.py tests/runtime/test_device.py tests/runtime/test_kernels.py tests/audit/test_hostile.py"
    " tests/kernels/test_errors.py"
)
#: the tests of tape and session, quickest first
TAPE = (
    "tests/runtime/test_optim.py tests/runtime/test_session.py tests/runtime/test_checkpoint.py tests/runtime/test_tape.py"
    " tests/runtime/test_tape_errors.py tests/runtime/test_tape_graphs.py tests/runtime/test_tape_operations.py"
)
CAPTURE = "tests/runtime/test_capture.py tests/runtime/test_capture_optim.py tests/runtime/test_capture_threads.py"

# fmt: off
ENTRY = [
    *defects("native/src/core/call.c", tests=CORE, rows=[
        ("    if (n > UINT32_MAX)\n", "    if (n > UINT32_MAX && 0)\n",
         "2^32 elements and more are taken: dropped bound check"),
        ("        if (out->storage->output) {", "        if (0) {", "two outputs may share storage: dropped check"),
        ("if (!call->elementwise || in->index != out->index)", "if (in->index != out->index)",
         "an output may be an input of any operation"),
        ("    if (got != n)\n", "    if (got < n)\n", "a longer buffer is taken: != became <"),
        ("rank >= min_rank && rank <= TL_MAX_RANK", "rank >= min_rank && rank <= TL_MAX_RANK + 1",
         "a rank of 9 is read past the list"),
    ]),
    *defects("native/src/core/handles.h", tests=CORE, rows=[
        ("return state == generation * 2 + 1 ? TL_LIVE : TL_WAS_RELEASED;",
         "return state & 1 ? TL_LIVE : TL_WAS_RELEASED;", "a released handle becomes another buffer's"),
    ]),
    *defects("native/src/core/objects.c", tests=CORE, rows=[
        ("        shared->references++;\n", "", "a shared storage is given back too early"),
        ("    tl_pool_drop(&ctx->pool, buffer->block);\n", "", "released buffers keep their memory"),
    ]),
    *defects("native/src/core/pool.c", tests=CORE, rows=[
        ("size > c->cap_bytes || c->live_bytes + c->cached_bytes > c->cap_bytes - size",
         "size > c->cap_bytes || c->live_bytes > c->cap_bytes - size", "the cap ignores what is cached"),
        ("        pool->cached[size_class] = block->cached;\n", "", "a cached block is handed out twice"),
    ]),
    *defects("native/src/core/device.c", tests=CORE, rows=[
        ("    while (ctx->buffers)\n        tl_buffer_end(ctx, (tl_buffer *)ctx->buffers);\n", "",
         "a context's buffers outlive it"),
    ]),
    *defects("native/src/core/shapes.h", rows=[
        ("    return n == 0 || greatest < bound;", "    return n == 0 || greatest <= bound;",
         "a label equal to cols is taken: < became <=", "cross_entropy"),
        ("    return next == (int64_t)in->rank + 1;", "    return 1;", "an axis map may leave input axes out",
         "broadcast_to,reduce_from_broadcast"),
    ]),
    *defects("native/src/core/threads.c", tests=f"tests/runtime/test_process.py {CORE}", rows=[
        ("    tl_set_mode(TL_STANDARD_MODE); /* a thread inherits its maker's mode */\n", "",
         "workers inherit flush-to-zero"),
    ]),
]

SPEC = [
    *defects("tlspec/bounds.py", tests="tests/spec tests/verify", rows=[
        ("return np.minimum(height, LAMBDA * np.sqrt(height))", "return np.multiply(height, 40)",
         "sums may be forty times as wrong"),
        ("_capped((ki + 0.5) * spacing(o) * (ki > 0) + fi)", "_capped((ki + 1.5) * spacing(o) + fi)",
         "an exact function may be an ulp off"),
    ]),
    *defects("tlspec/compare.py", tests="tests/spec tests/verify", rows=[
        ("        equal |= nan & np.isnan(got)\n", "        equal |= nan | np.isnan(got)\n",
         "a NaN passes for any value"),
        ("equal &= (got != 0) | (tol > 0) | (np.signbit(got) == np.signbit(nearest))", "equal &= True",
         "the sign of a zero is not compared"),
    ]),
    *defects("tlspec/ops/softmax.py", tests="tests/spec tests/kernels", rows=[
        ("    return out * (g - (g * out).sum(axis=1, keepdims=True))", "    return out * g",
         "softmax's VJP lacks its sum", "softmax"),
        ("    return g - np.exp(out) * g.sum(axis=1, keepdims=True)",
         "    return g - np.exp(out) * g.sum(axis=0, keepdims=True)", "the sum runs over the wrong axis",
         "log_softmax"),
    ]),
    *defects("tlspec/ops/norm.py", tests="tests/spec tests/kernels", rows=[
        ("    return istd * (a - c1 - xhat * c2), (g * xhat).sum(axis=0), g.sum(axis=0)",
         "    return istd * (a - c1 - xhat * c2), (a * xhat).sum(axis=0), g.sum(axis=0)", "dγ is weighted by γ",
         "layer_norm"),
    ]),
    *defects("tlspec/ops/spectral.py", tests="tests/spec tests/kernels", rows=[
        ("np.where((k == 0) | (2 * k == n), 1.0, 2.0)", "np.where(k == 0, 1.0, 2.0)", "the Nyquist bin counts twice",
         "spectral"),
    ]),
]

PYTHON = [
    *defects("tlrt/tape.py", tests=TAPE, rows=[
        ("                    grads[id] = AnyBuffer.of(old.shape, add(old.buffer, new))  # type: ignore[index]",
         "                    grads[id] = AnyBuffer.of(old.shape, new.share())  # type: ignore[index]",
         "contributions replace each other: wrong accumulation"),
        ("                    old.buffer.release()\n                    new.release()\n",
         "                    old.buffer.release()\n", "a summed contribution is never released", "",
         "the list popped next held the last reference, and CPython releases a buffer with it"),
        ("for i in range(len(grads) - 1, -1, -1):", "for i in range(len(grads) - 1, 0, -1):",
         "the first node is left out of backward", "",
         "the first node has no parents, so it has no VJP; a gradient nobody keeps goes with the list"),
        ("if g is not None and g.buffer.references > 1:", "if g is not None and g.buffer.references > 2:",
         "a gradient shares its storage with another"),
        ("                if keep is not None and i not in keep:\n                    g.buffer.release()\n",
         "                if keep is not None and i not in keep:\n", "consumed gradients are not released"),
        ("        node.requires_grad = needs and self.recording\n        node.parents",
         "        node.requires_grad = needs\n        node.parents", "no_grad records"),
        ("                key.append(str(extra))\n", "                pass\n", "-0.0 and 0.0 share a plan"),
    ]),
    *defects("tlrt/parameter.py", tests=TAPE, rows=[
        ("        self._release()\n        self._host = host\n", "        self._host = host\n",
         "a stale mirror is used after set"),
        ("        self._require_mirror()\n        self._host = None\n        self._version += 1\n",
         "        self._require_mirror()\n        self._version += 1\n", "a stale host value is read after an update"),
    ]),
    *defects("tlrt/session.py", tests=TAPE, rows=[
        ("        key = mix((self.seed + self.counter) % 2**64)\n        self.counter += 1\n",
         "        key = mix((self.seed + self.counter) % 2**64)\n", "every draw is the same: the counter stands"),
        ("            self.counter = before\n            raise\n", "            raise\n",
         "a refused draw advances the counter"),
        ("            if x.session is self and x.epoch == self.epoch:", "            if x.session is self:",
         "a tensor of before reset is used"),
        ("by_parameter[parameter] = g if g is not None else AnyBuffer.zeros(parameter.shape, self.device)",
         "by_parameter.update({parameter: g} if g is not None else {})", "an unreached parameter has no gradient"),
        ("return self.scale(self.mul(x, self.bernoulli_mask(self.shape(x), 1 - p)), 1 / (1 - p))",
         "return self.mul(x, self.bernoulli_mask(self.shape(x), 1 - p))", "dropout does not scale"),
    ]),
    *defects("tlrt/optim.py", tests=TAPE, rows=[
        ("step=self.steps + 1, lr=self.lr", "step=self.steps + 2, lr=self.lr", "bias correction off by one"),
        ("        for p in chosen:\n            p.updated()\n", "", "an update leaves host values as if current"),
        ('        self.steps = int(settings["steps"])\n', "", "a loaded optimiser starts at step 0"),
    ]),
    *defects("tlrt/checkpoint.py", tests=TAPE, rows=[
        ('session.seed, session.counter = about["random"]["seed"], about["random"]["counter"]',
         'session.seed = about["random"]["seed"]', "a checkpoint does not restore the counter"),
        ("        optimizer.load_state(settings, arrays)\n", "        pass\n",
         "a checkpoint does not restore optimisers"),
        ("got.shape != parameter.shape or got.dtype", "got.dtype", "a parameter of another shape is loaded"),
    ]),
    *defects("tlrt/_capture/record.py", tests=CAPTURE, rows=[
        ("                call.computed[place], key = key[1], None\n", "                key = None\n",
         "a captured step draws the same random numbers each time"),
    ]),
    *defects("tlrt/_capture/memory.py", tests=CAPTURE, rows=[
        ("if not storage.is_pinned and storage.last == place:", "if not storage.is_pinned:",
         "a captured step gives memory away before its last use"),
    ]),
    *defects("tlrt/optim.py", tests=CAPTURE, rows=[
        ("                call.computed[place] = partial(optimizer._setting, name)\n", "                pass\n",
         "a captured step keeps the learning rate it was captured with"),
        ("                optimizer.steps += not status\n", "", "a captured step does not count"),
    ]),
]
