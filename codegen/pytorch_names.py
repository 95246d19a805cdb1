"""What PyTorch's names are called here, and the page that says so.

A line of an area is `names of PyTorch | names here | what differs`. Names of PyTorch are those within `torch`, with F for
`torch.nn.functional`; – for the names here says that there is nothing, and the line then ends with what to use. Here s is a
session, x a tensor. Tests compare the lines with both libraries.
"""

import re

__all__ = ["AREAS", "GRADIENTS", "MISSING", "OURS_ALONE", "areas", "full_name", "pytorch_page"]

#: for a name that is not here
MISSING = "–"

AREAS = {
    "Creation and reading": """
tensor, as_tensor, from_numpy | s.const, s.input | `s.const` has no gradient, `s.input` takes requires_grad; always float32
nn.Parameter | s.param, s.use | has a unique name; takes part in operations like a tensor, of which `s.use` is the explicit form
zeros, zeros_like | s.zeros | takes a shape
ones, full, ones_like, full_like | s.full | takes a shape and a value
empty, empty_like | – | use `s.zeros`
arange, linspace, eye | – | use `s.const(np.arange(n))`, and so on
complex, Tensor.to_sparse, quantize_per_tensor | – | use arrays of real numbers; a tensor has no other kind
rand, rand_like, Tensor.uniform_ | s.rand_uniform | takes a shape
randn, randn_like, normal | s.rand_normal | takes a shape, and numbers as mean and std
bernoulli | s.bernoulli_mask | takes a shape and one probability
multinomial | s.multinomial | draws without replacement alone
randint, randperm | – | use NumPy's generators and `s.indices`
manual_seed | tlrt.Session | the argument seed; its random numbers are the same on every device
Tensor.item | x.item |
Tensor.numpy, Tensor.tolist, Tensor.cpu | x.numpy, s.get_value | copies to the host and waits for the device
Tensor.detach | x.detach |
Tensor.clone, Tensor.contiguous | – | use the tensor itself: nothing changes its elements
Tensor.to, Tensor.cuda, Tensor.double, Tensor.half | – | use a session of the device; float32, and float64 on "spec"
Tensor.add_, Tensor.copy_, Tensor.zero_ | – | use the operations that give a new tensor; `tlrt.Parameter.set` for a parameter
Tensor.shape | x.shape, s.shape |
Tensor.numel | x.size | `x.size` is no method: `x.shape` has the sizes
Tensor.ndim, Tensor.dim | x.ndim |
Tensor.device | x.device |
Tensor.requires_grad | x.requires_grad | of a tensor read alone; of a parameter it can be set
Tensor.grad | x.grad, s.gradients | a buffer on the device, which operations do not take
""",
    "Elementwise": """
add, sub | x.add, x.sub, x.axpy | no alpha: `x.axpy(y, alpha)` is x + alpha·y
mul, div | x.mul, x.div, x.scale | `x.scale` takes a number; no rounding_mode
addcmul, lerp, addmm | – | use operators, or `x.axpy`
neg, abs | x.neg, x.abs |
sign, floor, round | x.sign, x.floor, x.round | require no gradient; round has no decimals
ceil | – | use `-(-x).floor()`
trunc, frac, remainder, fmod, floor_divide | – | use `x.floor`
exp, expm1, log, log1p | x.exp, x.expm1, x.log, x.log1p |
exp2, log2, log10 | – | use `x.exp`, `x.log` and `x.scale`
sqrt, square, reciprocal | x.sqrt, x.square, x.inv |
rsqrt | – | use `x.sqrt().inv()`
pow | x.pow, x.pow_scalar |
sin, cos, atan2, erf | x.sin, x.cos, x.atan2, x.erf |
tan, asin, acos, atan, sinh, cosh | – | use `x.sin`, `x.cos`, `x.exp`; `x.atan2(1.0)` is the arc tangent
tanh, sigmoid, nn.Tanh, nn.Sigmoid | x.tanh, x.sigmoid |
logit, erfinv, lgamma, digamma | – | use `x.log` for logit; the others are not expressible
clamp, clip, nn.Hardtanh, nn.ReLU6 | x.clamp | both limits are given
maximum, minimum | x.max, x.min | `x.max(y)`; a number is a float
relu, F.relu, nn.ReLU | x.relu |
F.leaky_relu, nn.LeakyReLU | x.leaky_relu | slope is negative_slope
F.elu, nn.ELU | x.elu |
F.gelu, nn.GELU | x.gelu, x.gelu_erf | approximate is "tanh" unless said; "none", or gelu_erf, is PyTorch's default
F.silu, nn.SiLU | x.silu |
F.mish, F.hardswish, F.softsign | x.mish, x.hardswish, x.softsign |
F.softplus, nn.Softplus | x.softplus | no beta and no threshold
F.selu, F.celu, F.prelu, F.hardsigmoid, F.logsigmoid, F.glu | – | use `x.elu`, `x.clamp`, `x.softplus`, `x.sigmoid`
lt, le, gt, ge | x.lt, x.le, x.gt, x.ge | masks are floats, 1 and 0
eq, ne | x.eq, x.ne | masks as above; `==` asks whether two names are the same tensor
where | x.where, s.where | the mask is a tensor of 1 and 0
Tensor.masked_fill | x.masked_fill | the mask is a tensor of 1 and 0
logical_and, logical_or, logical_not | – | use `x.mul`, `x.max` and `1.0 - mask`
isnan, isinf, isfinite | – | use `x.ne(x)` for NaN, or `x.numpy`
F.dropout | s.dropout, x.dropout | p is given; always drops: `nn.Dropout` obeys training
""",
    "Reductions": """
sum, mean, prod | x.sum, x.mean, x.prod | dim is axis, keepdim is keepdims, in all reductions
amax, amin | x.amax, x.amin |
max, min | x.max, x.min | `x.max(axis=1)`, without places; `x.topk` has both
argmax, argmin | x.argmax, x.argmin | gives `tlrt.Indices`
var, std | x.var, x.std | correction is 0 unless said, PyTorch's is 1
logsumexp | x.logsumexp |
norm, linalg.norm, linalg.vector_norm | x.norm, x.vector_norm | p from 1 to inf; a matrix counts as its elements
cumsum, cumprod | x.cumsum, x.cumprod |
softmax, F.softmax, nn.Softmax | x.softmax | along the last axis alone
log_softmax, F.log_softmax, nn.LogSoftmax | x.log_softmax | along the last axis alone
any, all, count_nonzero | – | use `x.sum` and `x.max` of a mask
sort, argsort, median, quantile, unique | – | use `x.topk`, or NumPy on `x.numpy()`
var_mean, std_mean, aminmax | – | use both reductions
cummax, cummin, logcumsumexp | – | use a loop over slices
""",
    "Joining, cutting and shapes": """
cat, concat, concatenate, hstack, vstack | s.concat, x.concat_dim0 | concat_dim0 takes two operands
stack | s.stack |
split, chunk | x.split, x.chunk |
tensor_split, unbind | – | use `x.split`, or iterate over the tensor
F.pad | x.pad | (before, after) for every axis from the first, as numpy.pad; zeros or another number alone
reshape, Tensor.view, squeeze, unsqueeze | x.reshape | the shape is a sequence
flatten, ravel, nn.Flatten | x.flatten | to one axis; `x.reshape((n, -1))` keeps the first
permute, movedim, swapaxes | x.permute | the axes are a sequence
transpose, t | x.transpose2d, x.permute, x.swap_adjacent_at_depth | of matrices; of any rank; of neighbouring axes
broadcast_to, Tensor.expand, Tensor.expand_as | x.broadcast_to | no -1
flip | x.flip | all axes unless said
roll | x.roll | one axis, which is given
tile, Tensor.repeat | x.tile |
repeat_interleave | x.repeat | one number, and an axis
tril, triu | x.tril, x.triu | k is diagonal
narrow | x.slice_range0, x.slice1d | along axis 0; `x[:, i:j]` along others
meshgrid, cartesian_prod, Tensor.unfold, F.unfold, F.fold | – | use `x.broadcast_to`, or slices
""",
    "Choosing and indexing": """
Tensor.__getitem__ | x.index | `x[key]`; one array of integers or a mask of booleans on the host, and slices apart; always a copy
Tensor.__setitem__, Tensor.index_put | – | use `x.where`, `x.scatter_add_along` or `s.concat`
select | x.gather_row, x.gather_scalar | or `x[i]`
index_select | x.take, x.gather_rows_nat, x.gather_vec_nat | axis is 0 unless said
gather, take_along_dim | x.take_along | axis is the last unless said; its other axes are those of x
scatter_add | x.scatter_add_along | values come before the indices
index_add | x.scatter_add, x.scatter_add_rows, x.scatter_add_row, x.scatter_add_vec | no alpha; the first axis
scatter, scatter_reduce, index_fill, masked_scatter | – | use `x.scatter_add_along`, or `x.where` with a mask
masked_select | x.index | `x[mask]` with booleans of the host
nonzero, searchsorted, bincount | – | use NumPy on `x.numpy()`
topk | x.topk | NaN is the largest, as in PyTorch
F.one_hot | s.one_hot | floats; the number of classes is given
F.embedding | x.embedding | the table comes first; an index out of range reads 0
LongTensor | s.indices, tlrt.Indices | integers on the device, for indices and labels alone
""",
    "Products and transforms": """
matmul, mm, mv, dot | x.matmul | or `@`
bmm | x.bmm |
F.linear | x.linear, s.linear | PyTorch's order (x, w, b) too
einsum | s.einsum |
tensordot, outer, kron, baddbmm, chain_matmul | – | use `s.einsum`
linalg.solve, linalg.inv, linalg.cholesky, linalg.svd, linalg.eigh | – | use NumPy on the host
fft.rfft, fft.irfft | x.rfft1d_packed, x.irfft1d_packed | of (batch, n); real and imaginary parts are a last axis of 2
fft.fft, fft.rfft2, stft | – | use `s.spectral_conv2d`, or products with matrices of cosines and sines
""",
    "Convolution and pooling": """
conv1d, conv2d, conv3d, F.conv1d | s.conv, s.conv2d | (w, b, x): weights, bias or None, input; padding may differ before and after
conv_transpose1d, conv_transpose2d, conv_transpose3d | s.conv_transpose, s.conv_transpose2d | (w, b, x)
nn.Conv1d, nn.Conv2d, nn.Conv3d | nn.Conv | kernel has a number for each axis, or rank says how many; padding_mode is zeros
nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d | nn.ConvTranspose | as `nn.Conv`
F.max_pool1d, F.max_pool2d, F.max_pool3d | x.max_pool, x.max_pool2d, x.max_pool2d_pad | the stride is given; no places
F.avg_pool1d, F.avg_pool2d, F.avg_pool3d | x.avg_pool, x.avg_pool2d, x.avg_pool2d_pad | padded cells count
nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d | nn.MaxPool | no dilation and no ceil_mode
nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d | nn.AvgPool | no ceil_mode
nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d | nn.AdaptiveAvgPool | to one position alone
nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d | x.amax | `x.amax(axis=(-2, -1), keepdims=True)`, to one position
F.interpolate, nn.Upsample | nn.Upsample | nearest, by a whole factor
nn.PixelShuffle, nn.PixelUnshuffle | – | use `x.reshape` and `x.permute`
nn.MaxUnpool2d, nn.LPPool2d, nn.FractionalMaxPool2d, F.grid_sample | – | use `nn.Upsample`, `nn.AvgPool` or `nn.SmoothMaxPool`
""",
    "Attention": """
F.scaled_dot_product_attention | s.scaled_dot_product_attention | attn_mask is mask, is_causal is causal, dropout_p is dropout; \
heads are grouped without enable_gqa; a row that is blocked entirely gives zeros
nn.MultiheadAttention | nn.MultiHeadAttention, s.multi_head_attention | self-attention; embed_dim is width, num_heads is heads; \
no biases unless said; four weights, inputs first
nn.TransformerEncoderLayer | nn.TransformerBlock | norm_first=True; no dropout in the perceptron; 4·width wide there
nn.TransformerDecoderLayer, nn.Transformer | – | use `s.scaled_dot_product_attention` in a layer of your own
""",
    "Losses": """
F.cross_entropy, nn.CrossEntropyLoss | s.cross_entropy | classes are the last axis unless axis=1; labels are integers
F.nll_loss, nn.NLLLoss | – | use `s.cross_entropy` of the logits
F.mse_loss, nn.MSELoss | s.mse_loss |
F.l1_loss, nn.L1Loss | s.l1_loss |
F.huber_loss, nn.HuberLoss | s.huber_loss |
F.smooth_l1_loss, nn.SmoothL1Loss | s.smooth_l1_loss |
F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss | s.binary_cross_entropy_with_logits |
F.binary_cross_entropy, nn.BCELoss | – | use `s.binary_cross_entropy_with_logits` of the logits
F.kl_div, nn.KLDivLoss | s.kl_div |
nn.CTCLoss, nn.TripletMarginLoss, nn.CosineEmbeddingLoss, F.gaussian_nll_loss, F.poisson_nll_loss | – | use the operations of \
their formulas
""",
    "Norms": """
F.layer_norm | x.layer_norm | the last axis; eps is 1e-6 unless said, PyTorch's is 1e-5
F.rms_norm | x.rms_norm | the last axis
F.group_norm, F.instance_norm | x.group_norm, x.instance_norm |
F.batch_norm | x.batchnorm_channel_first, x.channel_affine | of one image; `nn.BatchNorm` for batches
native_layer_norm, native_group_norm, native_batch_norm | – | use `kernels.layer_norm_stats`, `kernels.group_norm_stats`, \
`kernels.batch_norm_stats`
nn.LayerNorm | nn.LayerNorm | elementwise_affine is affine
nn.RMSNorm | nn.RMSNorm | elementwise_affine is affine
nn.GroupNorm | nn.GroupNorm |
nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d | nn.InstanceNorm | no running statistics
nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d | nn.BatchNorm | running statistics are frozen parameters; momentum is a number
F.normalize, F.cosine_similarity | – | use `x.norm(axis=-1, keepdims=True)`
nn.LocalResponseNorm, nn.utils.spectral_norm, nn.SyncBatchNorm | – | use `nn.GroupNorm`
""",
    "Layers": """
nn.Module | nn.Layer | `__call__` in place of forward; training is an argument of the call
nn.Sequential | nn.Sequential | takes functions too: `nn.Sequential(layer, s.relu)`
nn.ModuleList | nn.ModuleList | a list as an attribute of an `nn.Layer` does the same
nn.ModuleDict, nn.ParameterList | – | use a dict or list as an attribute of an `nn.Layer`
nn.Identity | – | use a function
nn.Linear | nn.Linear | takes the session first, and a name, as all layers with parameters do
nn.Embedding | nn.Embedding | no padding_idx
nn.Dropout | nn.Dropout |
nn.Dropout2d, nn.AlphaDropout | – | use `s.bernoulli_mask` and `x.mul`
nn.LSTM, nn.GRU | nn.LSTM, nn.GRU | no proj_size; input (n, batch, input_size) unless batch_first
nn.RNN, nn.LSTMCell, nn.GRUCell | – | use `nn.GRU`, or `x.linear` and `x.tanh` in a loop over positions
nn.Bilinear, nn.EmbeddingBag | – | use `s.einsum`, or `nn.Embedding` and `x.sum`
nn.init.uniform_, nn.init.normal_ | nn.init.uniform, nn.init.normal | all take (session, shape) and give an array
nn.init.constant_, nn.init.ones_, nn.init.zeros_ | nn.init.constant, nn.init.ones, nn.init.zeros |
nn.init.kaiming_uniform_ | nn.init.kaiming_uniform | slope is a
nn.init.xavier_uniform_, nn.init.xavier_normal_ | nn.init.xavier_uniform, nn.init.xavier_normal |
nn.init.kaiming_normal_, nn.init.orthogonal_, nn.init.trunc_normal_ | – | use a function of a session and a shape as weight_init
""",
    "Optimisers": """
optim.Optimizer | optim.Optimizer | zero_grad is not needed; lr can be assigned
optim.SGD | optim.SGD | lr is 1e-2 unless said; no dampening
optim.Adam | optim.Adam | betas are beta1 and beta2; no amsgrad
optim.AdamW | optim.AdamW | as Adam
optim.swa_utils.AveragedModel | optim.ExponentialMovingAverage | of parameters
optim.RMSprop | optim.RMSprop | momentum and centered are chosen when it is made; a variance that rounds below 0 is 0
optim.Adagrad, optim.Adadelta, optim.NAdam, optim.RAdam | – | use `optim.AdamW`
optim.LBFGS, optim.Rprop | – | use `optim.SGD`
""",
    "Schedules": """
optim.lr_scheduler.ConstantLR | nn.schedules.constant | all are functions of the step: `optimizer.lr = nn.schedules.cosine(k, …)`
optim.lr_scheduler.StepLR | nn.schedules.step_decay | step_size is every, gamma is factor
optim.lr_scheduler.MultiStepLR | nn.schedules.milestones | milestones is at, gamma is factor
optim.lr_scheduler.ExponentialLR | nn.schedules.exponential | gamma is factor
optim.lr_scheduler.LinearLR | nn.schedules.linear | from peak to final, after a warmup
optim.lr_scheduler.PolynomialLR | nn.schedules.polynomial | as linear, with a power
optim.lr_scheduler.CosineAnnealingLR | nn.schedules.cosine | T_max is total, eta_min is final
optim.lr_scheduler.CosineAnnealingWarmRestarts | nn.schedules.cosine_restarts | T_0 is period, T_mult is growth
optim.lr_scheduler.OneCycleLR | nn.schedules.one_cycle | max_lr is peak, pct_start is rise
optim.lr_scheduler.LambdaLR, optim.lr_scheduler.SequentialLR, optim.lr_scheduler.ReduceLROnPlateau | – | use any number: \
`optimizer.lr` is assigned
""",
    "Training": """
Tensor.backward, autograd.backward | x.backward, s.backward | replaces the gradients; accumulate=True adds to them
autograd.grad | s.backward | gradients by parameter; for an input `s.input(array, requires_grad=True)` and `x.grad`
autograd.functional.hessian, func.vmap, func.jacrev | – | use differences of gradients; operations take batches
autograd.Function | tlrt.Tape | its add_node takes a forward result and a backward function
no_grad, inference_mode | s.no_grad |
optim.Optimizer.zero_grad | s.reset | releases the step's tensors and gradients
nn.utils.clip_grad_norm_ | s.clip_grad_norm | on the device
nn.utils.clip_grad_value_ | – | use `s.clip_grad_norm`
nn.Module.parameters | nn.Layer.parameters, s.parameters | `s.parameters` has all by name
nn.Module.named_parameters | nn.Layer.named_parameters | a list of pairs
nn.Module.state_dict, nn.Module.load_state_dict | nn.Layer.state_dict, nn.Layer.load_state_dict | NumPy arrays, PyTorch's names
nn.Module.requires_grad_ | nn.Layer.requires_grad_ | statistics stay frozen
save, load | checkpoint.save, checkpoint.load | one file for parameters, optimisers and random numbers
distributed.init_process_group | distributed.join | reads what torchrun, mpirun or `python -m tlrt launch` set
nn.parallel.DistributedDataParallel | distributed.DataParallel | the same bits for every number of processes
nn.Module.train, nn.Module.eval | – | use `layer(x, training=True)`; off unless said
compile, jit.trace, cuda.CUDAGraph | s.capture | a step of fixed shapes, with the same bits
use_deterministic_algorithms | tlrt.device | always so on one device; with `math="reproducible"` the same bits on all
set_num_threads, get_num_threads | tlrt.set_threads, tlrt.threads |
cuda.device_count, cuda.is_available | tlrt.devices | lists what a session can run on
cuda.synchronize | tlrt.Device.synchronize | `s.device` is the device
cuda.empty_cache | s.collect |
cuda.memory_allocated, cuda.max_memory_allocated | tlrt.Device.memory | live, peak and cached bytes
__version__, __config__.show | tlrt.build_info, tlrt.describe |
autograd.gradcheck, testing.assert_close | tlrt.compare | against float64, with a derived bound for every value
utils.checkpoint.checkpoint, amp.autocast | – | use smaller batches, with accumulate=True
utils.data.DataLoader | – | use any iterator of arrays
""",
}

OURS_ALONE = {
    "What a checkpoint says beside its tensors": "checkpoint.peek",
    "Views and copies by rank": "s.concat1d, s.concat_vectors, s.concat_rows, s.transpose3d_acb, s.transpose3d_bca, \
s.transpose3d_cab, s.broadcast_vec_to_rows, s.broadcast_vec_to_cols",
    "Reductions of matrices": "s.reduce_sum, s.reduce_mean, s.reduce_sum_axis0, s.reduce_sum_axis1, s.reduce_max_axis0, \
s.reduce_max_axis1",
    "Soft maxima and logarithms": "s.smooth_max_pool, s.smooth_max_pool2d, s.smooth_max_pool2d_pad, s.safe_log, nn.SmoothMaxPool",
    "Attention and positions": "s.attention, s.flash_attention, s.rotary, s.sinusoidal, nn.KeyValueCache",
    "Recurrences": "s.selective_scan_diag, s.selective_scan_diag_var, nn.SelectiveScan, nn.MambaBlock",
    "Fourier neural operators": "s.spectral_conv1d_rfft, s.spectral_conv2d, nn.SpectralConv1d, nn.SpectralConv2d, \
nn.FNOBlock1d, nn.FNOBlock2d",
    "Indices that change between steps": "s.nat, s.get_nat, s.set_nat, s.nat_vec, s.get_nat_vec, s.set_nat_vec, \
s.gather_scalar_nat",
    "The life of a session": "s.close",
    "Schedules": "nn.schedules.inverse_sqrt, nn.schedules.warmup_stable_decay",
    "Own optimisers and initial values": "optim.Lion, optim.Update, optim.one_call, nn.init.Initializer",
}

#: gradients that differ on purpose: `names of PyTorch | where | here | in PyTorch 2.13, and 2.14`; tests compute both
GRADIENTS = """
clamp | at a bound | 0 | 1; since 2.14 0, and ½ where the bounds are tensors
sqrt | at 0 | 0 | ∞
sqrt | below 0 | 0, and the root is NaN | NaN
atan2 | at (0, 0) | NaN | 0
logsumexp | of -∞ alone | 0 | NaN
relu, F.elu | at NaN | NaN | 1
F.leaky_relu | at NaN | NaN | the slope
abs, clamp | at NaN | NaN | 0
maximum, minimum | where one is NaN | NaN of both | 1 of both
F.gelu, F.silu, F.mish | at ∞; at -∞ | 1; 0 | NaN
F.softsign | at ∞ and -∞ | 0 | NaN
expm1 | at -20 | e⁻²⁰ | 0
"""

HEAD = """# From PyTorch

Written by `make abi` (codegen/pytorch_names.py); tests resolve every name. Here s is a session, x a tensor or a parameter.
Operations, `x.relu()`, are methods of the session too, `s.relu(x)`. What the table says of `torch.relu` and the like holds for
the method of `torch.Tensor` too. A dimension `dim` is `axis` here, and `keepdim` is `keepdims`. – says that there is nothing of
the kind. [session.md](session.md) explains sessions.
"""


def areas() -> dict[str, list[tuple[list[str], list[str], str]]]:
    """Area -> names of PyTorch within torch, names here, what differs, for each line."""
    return {area: [_row(line) for line in text.strip().splitlines()] for area, text in AREAS.items()}


def _row(line: str) -> tuple[list[str], list[str], str]:
    theirs, ours, note = (part.strip() for part in line.split("|"))
    return theirs.split(", "), [] if ours == MISSING else ours.split(", "), note


def full_name(theirs: str) -> str:
    """The name of PyTorch that a line abbreviates."""
    return f"torch.{re.sub(r'^F[.]', 'nn.functional.', theirs)}"


def pytorch_page() -> str:
    """The page."""

    def code(names: list[str]) -> str:
        return ", ".join(f"`{name}`" for name in names) or MISSING

    parts = [HEAD]
    for area, rows in areas().items():
        lines = [f"| {code([*map(full_name, theirs)])} | {code(ours)} | {note} |" for theirs, ours, note in rows]
        parts.append("\n".join([f"## {area}\n", "| PyTorch | here | what differs |", "|---|---|---|", *lines, ""]))
    lines = [
        f"| {code([*map(full_name, theirs.split(', '))])} | {where} | {here} | {there} |"
        for theirs, where, here, there in (line.split(" | ") for line in GRADIENTS.strip().splitlines())
    ]
    about = (
        "At other kinks and at ties they are PyTorch's: relu, leaky_relu and abs at 0, equal maxima, products with a 0, \
the norm of 0.\n"
    )
    head = [
        "## Gradients that differ on purpose\n",
        about,
        "| PyTorch | where | here | in PyTorch |",
        "|---|---|---|---|",
    ]
    parts.append("\n".join([*head, *lines, ""]))
    alone = [f"- {what}: {code(names.split(', '))}" for what, names in OURS_ALONE.items()]
    parts.append("\n".join(["## What PyTorch has no counterpart of\n", *alone, ""]))
    return "\n".join(parts)
