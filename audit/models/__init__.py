"""Models of five families, each written with the public names of tlrt, beside the same model in PyTorch.

======================  ==========================================================================================
:mod:`.llama`           decoder blocks with rotary positions, grouped heads, RMS norms, generation with a cache
:mod:`.resnet`          ResNet-18, whose batch norms keep running statistics
:mod:`.unet`            a U-Net, whose levels are joined by concatenation
:mod:`.fno2d`           a Fourier neural operator of two axes
:mod:`.lstm`            a language model of LSTM layers
======================  ==========================================================================================

``python -m audit models`` gives both the same weights and batches and trains both. It compares the first loss, every gradient of
the first step, the losses of all steps, the parameters and running statistics after them, and what the trained model
gives. Names of parameters are PyTorch's, so weights go over by name.

Three things are held to bounds that :mod:`.spread` derives. In float32 the errors of tlrt against PyTorch in float64 stay
within the bound. The program of tlrt, run in float64 on the specification, stays within 2^-28 of that bound, which
float64 roundings of both sides (2^-29 of float32's) may reach: so both are the same function, to 12 digits or so. And
every operation of the first step, forward and backward, stays within its own bound on its own inputs
(:func:`tlrt.compare`). The errors of PyTorch in float32 are shown beside those of tlrt, as shares of the same bound.
"""
