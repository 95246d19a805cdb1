/* A recurrent layer in one direction (recurrent_layer.cpp), of which recurrent.cpp makes PyTorch's layers and cells. */
#pragma once

#include "call.h"

namespace tlrt {

enum Kind : int64_t { LSTM, GRU, TANH, RELU };

/* The parameters of a layer in one direction; undefined where it has none. */
struct Weights {
    at::Tensor ih, hh, b_ih, b_hh, hr;
};

struct Result {
    at::Tensor y, h, c; /* the outputs of all steps, and the last states */
};

/* x: the rows of all steps, of which step t has rows[t]: falling, or rising where the layer runs backwards. h0 and c0 are of the
 * sequences of the first step. It can be differentiated, twice too. */
Result direction(Kind kind, const at::Tensor &x, at::IntArrayRef rows, const at::Tensor &h0, const at::Tensor &c0,
                 const Weights &w, bool reverse);

} // namespace tlrt
